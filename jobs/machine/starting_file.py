"""The work of `dray init`: a file of configuration to begin with is written, and none is written over."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from jobs.config.arguments import apart, gives, spelled_out
from jobs.config.as_yaml import as_yaml
from jobs.config.one_line import load_run
from jobs.config.run import GenerateConfig
from jobs.driver.stopping import Exit, bad_configuration

_ENDINGS = (".yaml", ".yml")
# Fields that many runs set; those that are not set are comments in the file.
_USUAL = (
    *("input.id_column", "input.carry_columns", "models.draft", "models.dtype", "chat.system_prompt"),
    *("sampling.temperature", "sampling.max_tokens", "sampling.n", "engine.drafter", "engine.num_slots"),
    *("actors.max_actors", "run.seed", "run.local"),
)


@dataclass(frozen=True, kw_only=True)
class InitConfig(GenerateConfig):
    """Writes a configuration file that says what one line of dray generate says, with comments on the fields."""

    usage = ("[RUN.yaml] [FILE] [OUT] [--model MODEL]",)
    file: str = "run.yaml"  # to write
    has_model: bool = True  # whether one is named, for which this machine can choose


def load_init(kind: type[InitConfig], arguments: Sequence[str], prog: str) -> InitConfig:
    """Return the configuration to write; what is not given has a name that is to be replaced."""
    places, flags = apart(spelled_out(arguments, kind), kind)
    files = [place for place in places if place.endswith(_ENDINGS)]
    if len(files) > 1:
        raise ValueError(f"{' and '.join(files)} are two files to write; name one")
    places = [place for place in places if place not in files]
    has_model = gives(flags, "models.target")
    flags += [] if has_model else ["--models.target=MODEL"]
    has_input = gives(flags, "input.path")
    flags += [] if places or has_input else ["--input.path=questions.jsonl"]
    flags += [] if len(places) + has_input > 1 or gives(flags, "output.path") else ["--output.path=out/"]
    config = load_run(kind, [*places, *flags], prog)
    return replace(config, chosen={}, file=files[0] if files else InitConfig.file, has_model=has_model)


def write(config: InitConfig) -> Exit:
    """Write the file, and return the exit code."""
    from jobs.driver.chosen import ASKED_OF_COMMAND, chosen_here  # here, since it needs torch, which --help does not

    try:
        chosen = chosen_here(config) if config.has_model else config
        text = as_yaml(chosen, ASKED_OF_COMMAND, _USUAL)
        with Path(config.file).expanduser().open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        return bad_configuration(ValueError(f"{config.file} is there already; name another file to write"))
    except (ValueError, OSError) as error:
        return bad_configuration(error)
    named = "" if config.has_model else "name your model in it in place of MODEL\n"
    print(f"wrote {config.file}\n{named}dray generate --config {config.file} --dry-run shows the plan")
    return Exit.COMPLETE
