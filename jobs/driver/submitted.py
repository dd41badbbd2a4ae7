"""A job that was submitted with its folder: it runs in a copy of the folder, which the cluster deletes.

`ray job submit --working-dir .` packs the folder, without what .gitignore and .rayignore name, and each node unpacks it
under its own session (https://docs.ray.io/en/latest/cluster/running-applications/job-submission/quickstart.html).
"""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_PACKAGES, _PACKAGE = "working_dir_files", "_ray_pkg_"  # the folder of copies, and how a copy's name begins
_GLOB = "*?["


def submitted_copy() -> Path | None:
    """Return the copy in which this process was started; None if it runs elsewhere."""
    here = Path.cwd()
    for folder in (here, *here.parents):
        if folder.parent.name == _PACKAGES and folder.name.startswith(_PACKAGE):
            return folder
    return None


def check_submitted(
    outputs: Mapping[str, str | None], inputs: Mapping[str, str | Sequence[str] | None], copy: Path | None
) -> None:
    """Raise ValueError if something would be written into the copy, or is read that was not copied.

    Both map the names of options to paths or URIs, or to a model's name. What is read from the copy is noted on
    standard error: another submission has another copy, and cannot go on with the run.
    """
    if copy is None:
        return
    for option, path in outputs.items():
        if path is not None and _lies_in(copy, path):
            raise ValueError(
                f"{option} {path!r} lies in the copy of your folder in which this submitted job runs, and the cluster "
                "deletes that copy; name an absolute path that all nodes share, or a URI such as s3://bucket/corpus"
            )
    for option, path in _each(inputs):
        if not _lies_in(copy, path):
            continue
        if Path(path).expanduser().exists():
            print(
                f"note: {option} {path!r} is read from the copy of your folder in which this submitted job runs; "
                "another submission cannot go on with this run. An absolute path that all nodes share, or a URI, stays",
                file=sys.stderr,
            )
        elif not any(mark in path for mark in _GLOB) and not _may_be_a_model(path):
            raise ValueError(
                f"{option} {path!r} is not in the copy of your folder in which this submitted job runs: Ray leaves out "
                "what .gitignore and .rayignore name; name an absolute path that all nodes share, or a URI"
            )


def _each(inputs: Mapping[str, str | Sequence[str] | None]) -> Iterator[tuple[str, str]]:
    for option, paths in inputs.items():
        for path in [paths] if isinstance(paths, str) else paths or ():
            yield option, path


def _lies_in(copy: Path, path: str) -> bool:
    return "://" not in path and Path(os.path.abspath(os.path.expanduser(path))).is_relative_to(copy)


def _may_be_a_model(path: str) -> bool:
    """Tell whether this may be a name on the hub, such as Qwen/Qwen3-8B."""
    return path.count("/") <= 1 and not path.startswith(".") and not Path(path).suffix
