"""LIBRARY: Dray in a script or a notebook: rows in, a table of texts out, and runs as tables.

    import dray

    table = dray.generate(["Once upon a time"], "path/to/target", "path/to/draft", temperature=0.8, n=2)
    print(table.select(["row_id", "sample", "text"]).to_pandas())

The texts are, token for token, what the target alone would write, whatever the draft. Importing is quick: torch is
imported when a model is loaded.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from decoding.engine.engine import Engine
    from decoding.sampling_params import SamplingParams
    from dray.corpus import load
    from dray.generation import generate, load_model, stream
    from dray.model import Model

    __version__: str

__all__ = ["Engine", "Model", "SamplingParams", "__version__", "generate", "load", "load_model", "stream"]

_HOMES = {
    "generate": "dray.generation",
    "stream": "dray.generation",
    "load_model": "dray.generation",
    "Model": "dray.model",
    "load": "dray.corpus",
    "SamplingParams": "decoding.sampling_params",
    "Engine": "decoding.engine.engine",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is used: torch takes seconds, and some programs only read a run."""
    if name == "__version__":
        from importlib.metadata import version

        return version("dray")
    if name not in _HOMES:
        raise AttributeError(f"module 'dray' has no attribute {name!r}")
    _refuse_other_jobs()
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """List the public names, for completion in a notebook."""
    return __all__


def _refuse_other_jobs() -> None:
    """Raise ImportError if a folder of the user, such as `pipeline` beside a notebook, hides one of our packages."""
    jobs = import_module("jobs")  # looks for the others
    # It is a folder, or a file jobs.py, which has no __path__.
    found = Path(next(iter(getattr(jobs, "__path__", [str(jobs.__file__)])))).resolve()
    if found != Path(__file__).resolve().parents[1] / "jobs":
        raise ImportError(
            f"{found} has the name of Dray's package 'jobs', and Python imports it in its place; rename it"
        )
