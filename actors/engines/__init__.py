"""The engines that can compute the tokens of a run. Each answers for itself; only this room asks which one it is."""

from actors.engines.backend import Backend
from actors.engines.vllm import Vllm
from actors.settings import GeneratorSettings

_BACKENDS: dict[str, type[Backend]] = {"dray": Backend, "vllm": Vllm}


def backend_of(settings: GeneratorSettings) -> Backend:
    """Return the engine that these settings name. Raises ValueError if there is no such engine."""
    name = settings.engine.backend
    if name not in _BACKENDS:
        raise ValueError(f"engine.backend must be 'dray' or 'vllm', got {name!r}")
    return _BACKENDS[name](settings)
