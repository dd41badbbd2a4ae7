"""InitConfig: what `dray init` writes to a file."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from jobs.config.arguments import apart, gives, spelled_out
from jobs.config.one_line import load_run
from jobs.config.run import GenerateConfig

_ENDINGS = (".yaml", ".yml")


@dataclass(frozen=True, kw_only=True)
class InitConfig(GenerateConfig):
    """Writes the file of configuration that says what one line says, with what each field means."""

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
