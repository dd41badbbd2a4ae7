"""A job that was submitted with its folder: it runs in a copy of the folder, which the cluster deletes.

`ray job submit --working-dir .` packs the folder, without what .gitignore and .rayignore name, and each node unpacks it
under its own session (https://docs.ray.io/en/latest/cluster/running-applications/job-submission/quickstart.html).
"""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from actors.settings import ModelSettings
from training.trainer.options import ModelOptions

_PACKAGES, _PACKAGE = "working_dir_files", "_ray_pkg_"  # the folder of copies, and how a copy's name begins
_Options = Mapping[str, str | Sequence[str] | None]  # paths or URIs, or a model's name, by the names of options


def submitted_copy() -> Path | None:
    """Return the copy in which this process was started; None if it runs elsewhere."""
    here = Path.cwd()
    copies = (each for each in (here, *here.parents) if each.parent.name == _PACKAGES)
    return next((each for each in copies if each.name.startswith(_PACKAGE)), None)


def paths_of(models: ModelSettings | ModelOptions) -> dict[str, str | None]:
    """Return the paths of models, by the names of their options."""
    return {f"models.{name}": getattr(models, name) for name in ("target", "draft", "tokenizer")}


def check_submitted(outputs: _Options, inputs: _Options) -> None:
    """Raise ValueError if a submitted job would write into its copy, or read what was not copied.

    What is read from the copy is noted on standard error: another submission cannot go on with the run.
    """
    for option, path in _in_copy(outputs):
        raise ValueError(
            f"{option} {path!r} lies in the copy of your folder in which this submitted job runs, and the cluster "
            "deletes that copy; name an absolute path that all nodes share, or a URI such as s3://bucket/corpus"
        )
    for option, path in _in_copy(inputs):
        if Path(path).expanduser().exists():
            print(
                f"note: {option} {path!r} is read from the copy of your folder in which this submitted job runs; "
                "another submission cannot go on with this run. An absolute path that all nodes share, or a URI, stays",
                file=sys.stderr,
            )
            continue
        is_on_hub = path.count("/") <= 1 and not path.startswith(".") and not Path(path).suffix  # such as Qwen/Qwen3-8B
        if not set("*?[") & set(path) and not (option.startswith("models.") and is_on_hub):
            raise ValueError(
                f"{option} {path!r} is not in the copy of your folder in which this submitted job runs: Ray leaves out "
                "what .gitignore and .rayignore name; name an absolute path that all nodes share, or a URI"
            )


def _in_copy(options: _Options) -> Iterator[tuple[str, str]]:
    """Yield the options, with their paths, that lie in the copy."""
    if (copy := submitted_copy()) is None:
        return
    for option, paths in options.items():
        for path in [paths] if isinstance(paths, str) else paths or ():
            if "://" not in path and Path(os.path.abspath(os.path.expanduser(path))).is_relative_to(copy):
                yield option, path
