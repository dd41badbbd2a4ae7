"""The work of `dray init`: a file of configuration is written, and none is written over."""

from pathlib import Path

from jobs.config.as_yaml import as_commented_yaml
from jobs.driver.chosen import ASKED_OF_COMMAND, chosen_here
from jobs.driver.stopping import Exit, bad_configuration
from jobs.machine.init_config import InitConfig

# Fields that many runs set; those that are not set are comments in the file.
_USUAL = (
    *("input.id_column", "input.carry_columns", "models.draft", "models.dtype", "chat.system_prompt"),
    *("sampling.temperature", "sampling.max_tokens", "sampling.n", "engine.drafter", "engine.num_slots"),
    *("actors.max_actors", "run.seed", "run.local"),
)


def write(config: InitConfig) -> Exit:
    """Write the file, and return the exit code."""
    try:
        chosen = chosen_here(config) if config.has_model else config
        text = as_commented_yaml(chosen, ASKED_OF_COMMAND, _USUAL)
        with Path(config.file).expanduser().open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        return bad_configuration(ValueError(f"{config.file} is there already; name another file to write"))
    except (ValueError, OSError) as error:
        return bad_configuration(error)
    named = "" if config.has_model else "name your model in it (MODEL); "
    print(f"wrote {config.file}; {named}dray generate --config {config.file} --dry-run shows the plan")
    return Exit.COMPLETE
