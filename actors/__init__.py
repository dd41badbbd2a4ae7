"""PROCESSES: where rows and tokens meet. Engines in Ray actors."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from actors.settings import ChatSettings, EngineSettings, GeneratorSettings, ModelSettings
    from actors.workers.dataset_generator import generate

__all__ = ["ChatSettings", "EngineSettings", "GeneratorSettings", "ModelSettings", "generate"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is asked for: the ledger and the feed run in processes that need no torch."""
    if name not in __all__:
        raise AttributeError(f"module 'actors' has no attribute {name!r}")
    home = "actors.workers.dataset_generator" if name == "generate" else "actors.settings"
    return getattr(import_module(home), name)
