"""TOKENS: lossless batched speculative decoding. torch and transformers only."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from decoding.engine.engine import Engine
    from decoding.engine.options import EngineOptions
    from decoding.engine.scored_text import ScoredText
    from decoding.sampling_params import SamplingParams
    from decoding.sequence import Sequence
    from decoding.speculator import Speculator

__all__ = ["Engine", "EngineOptions", "SamplingParams", "ScoredText", "Sequence", "Speculator"]

_HOMES = {
    "Engine": "decoding.engine.engine",
    "EngineOptions": "decoding.engine.options",
    "SamplingParams": "decoding.sampling_params",
    "ScoredText": "decoding.engine.scored_text",
    "Sequence": "decoding.sequence",
    "Speculator": "decoding.speculator",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is used, so that a low file of this package does not load the whole engine."""
    if name not in _HOMES:
        raise AttributeError(f"module 'decoding' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
