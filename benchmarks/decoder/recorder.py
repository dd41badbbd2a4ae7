"""ForwardRecorder: which forwards a run made, and how long the same ones take with nothing in between.

While it records it stands in front of each model's `forward`; otherwise nothing does. Forwards of one shape (rows,
tokens, positions read) are taken to last the same, so one of each is kept and replayed.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch

from benchmarks.harness import seconds_of
from decoding.cache.kv_cache import LENGTH_BUCKET
from decoding.network.language_model import LanguageModel

Phase = Literal["prefill", "target", "draft"]
Shape = tuple[Any, ...]
_CUDA_REPEATS = 8  # launched back to back between two synchronizations, as they are in a run


@dataclass
class Recorded:
    """Forwards of one shape."""

    phase: Phase  # prefill: of either model, no logits wanted
    again: Callable[[], object]
    count: int = 0


@dataclass(frozen=True)
class RawSeconds:
    """How long a run's forwards take by themselves."""

    prefill: float
    target: float
    draft: float


@dataclass
class ForwardRecorder:
    """The forwards of these models, by role, once `recording` was entered."""

    models: Mapping[Literal["target", "draft"], LanguageModel]
    shapes: dict[Shape, Recorded] = field(default_factory=dict)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record what the models do meanwhile."""
        for role, model in self.models.items():
            for name in ("forward", "plain_logits"):
                setattr(model, name, partial(self._record, role, model, getattr(model, name)))
        try:
            yield
        finally:
            for model in self.models.values():
                del model.forward, model.plain_logits  # what is left is the class's own

    def count(self, phase: Phase) -> int:
        """Return the number of forwards of a phase."""
        return sum(recorded.count for recorded in self.shapes.values() if recorded.phase == phase)

    def replay(self) -> RawSeconds:
        """Run each shape once more, by itself, and sum over what was recorded. The caches are overwritten."""
        seconds = {"prefill": 0.0, "target": 0.0, "draft": 0.0}
        device = self.models["target"].device
        times = _CUDA_REPEATS if device.type == "cuda" else 1
        for recorded in self.shapes.values():
            seconds[recorded.phase] += recorded.count * seconds_of(recorded.again, device, times)
        return RawSeconds(**seconds)

    def _record(
        self,
        role: Literal["target", "draft"],
        model: LanguageModel,
        original: Callable[..., torch.Tensor],
        *args: Any,
        **kwargs: Any,
    ) -> torch.Tensor:
        given = inspect.signature(original).bind(*args, **kwargs).arguments
        wanted = given.get("logits_at_BJ")
        phase: Phase = "prefill" if isinstance(wanted, torch.Tensor) and wanted.shape[1] == 0 else role
        shape = (role, original.__name__, *shape_of(given))
        if shape not in self.shapes:
            self.shapes[shape] = Recorded(phase, partial(original, *args, **kwargs))
        self.shapes[shape].count += 1
        return original(*args, **kwargs)


def shape_of(arguments: Mapping[str, Any]) -> Shape:
    """Return what a forward's time depends on: sizes of tensors and lists, positions that it reads, raggedness."""
    return tuple((name, *_shape(name, value, arguments)) for name, value in sorted(arguments.items()))


def _shape(name: str, value: Any, arguments: Mapping[str, Any]) -> Shape:
    if value is None or isinstance(value, bool | int | float | str):
        return (value,)
    if name == "starts":
        width = arguments["token_ids_BT"].shape[1]
        return len(value), -(-(int(max(value)) + width) // LENGTH_BUCKET)
    if name == "lengths":
        return int(sum(value)), int(max(value)), len({int(length) for length in value}) > 1
    if name == "slots":
        return len(value), [int(slot) for slot in value] == list(range(len(value)))
    if isinstance(value, torch.Tensor):
        return (*value.shape, str(value.dtype))
    return (len(value),) if hasattr(value, "__len__") else (type(value).__name__,)
