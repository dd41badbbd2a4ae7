"""TOKENS: lossless batched speculative decoding. torch and transformers only."""

from decoding.engine.engine import Engine
from decoding.engine.options import EngineOptions
from decoding.sampling_params import SamplingParams
from decoding.sequence import Sequence

__all__ = ["Engine", "EngineOptions", "SamplingParams", "Sequence"]
