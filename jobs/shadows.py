"""Shadows: folders or files of a user with the name of one of our packages, which Python finds in place of ours."""

import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import PathFinder
from pathlib import Path

_OURS = Path(__file__).resolve().parents[1]
_PACKAGES = ("actors", "decoding", "endpoint", "jobs", "pipeline", "training")


def refuse_shadows(search: Sequence[str], *, spare: Iterable[str] = ()) -> None:
    """Raise ValueError, naming the shadow, if one of our packages is another one on this search path.

    Packages to `spare` may be shadowed: those that no process will import from there.
    """
    for name in _PACKAGES:
        if name not in spare and (found := _foreign(name, search)) is not None:
            raise ValueError(
                f"{found} has the name of Dray's package {name!r}, and Python imports it in place of ours; rename it, "
                "or run the command in another folder (paths in a configuration may be absolute)"
            )


def refuse_shadows_of_workers() -> None:
    """Raise ValueError if Ray's workers, which search the working directory first, would import a shadow.

    They do not import `jobs`, so that a folder `jobs` does no harm.
    """
    refuse_shadows([str(Path.cwd()), *sys.path], spare=["jobs"])


def _foreign(name: str, search: Sequence[str]) -> Path | None:
    """Return what is found under the name of a package if it is not ours; a folder without Python counts, too."""
    spec = PathFinder.find_spec(name, list(search))
    if spec is None:  # left to other finders, such as that of an editable installation
        return None
    places = list(spec.submodule_search_locations or ()) or [str(spec.origin)]
    found = Path(places[0]).resolve()
    return None if found == _OURS / name else found
