"""PROCESSES: where rows and tokens meet. Engines in Ray actors."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from actors.settings import ChatSettings, GeneratorSettings, ModelSettings
    from actors.workers.dataset_generator import generate

__all__ = ["ChatSettings", "GeneratorSettings", "ModelSettings", "generate"]

_HOMES = {
    "ChatSettings": "actors.settings",
    "GeneratorSettings": "actors.settings",
    "ModelSettings": "actors.settings",
    "generate": "actors.workers.dataset_generator",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is asked for: the ledger and the feed run in processes that need no torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'actors' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
