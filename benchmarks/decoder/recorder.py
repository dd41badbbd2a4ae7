"""ForwardRecorder: which forwards a run made, and how long the same ones take with nothing in between.

While it records it stands in front of each model's `forward`; otherwise nothing does. Forwards of one shape (rows,
tokens, positions read) are taken to last the same, so one of each is kept and replayed. What each forward must read and
compute is counted exactly, for `benchmarks/decoder/work.py`.
"""

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch

from benchmarks.harness import seconds_of
from benchmarks.roofline.model_size import Forward
from decoding.cache.kv_cache import LENGTH_BUCKET
from decoding.network.language_model import LanguageModel

Role = Literal["target", "draft"]
Phase = Literal["prefill", "target", "draft"]
Shape = tuple[Any, ...]
# On CUDA forwards are launched back to back between two synchronizations, as they are in a run. A shape whose graph was
# not kept is run as it is the first time, recorded the second and replayed from the third on.
_REPEATS = {"cpu": 1, "cuda": 8}
_UNTIMED = {"cpu": 0, "cuda": 3}


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

    models: Mapping[Role, LanguageModel]
    shapes: dict[Shape, Recorded] = field(default_factory=dict)
    forwards: Counter[tuple[Phase, Role, Forward]] = field(default_factory=Counter)

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
        times = _REPEATS[device.type]
        for recorded in self.shapes.values():
            for _ in range(_UNTIMED[device.type]):
                recorded.again()
            seconds[recorded.phase] += recorded.count * seconds_of(recorded.again, device, times)
        return RawSeconds(**seconds)

    def _record(
        self,
        role: Role,
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
        self.forwards[phase, role, size_of(given)] += 1
        return original(*args, **kwargs)


def size_of(arguments: Mapping[str, Any]) -> Forward:
    """Return how many tokens a forward has, how many logits are wanted, and which keys it reads.

    Takes the arguments of `LanguageModel.forward`, or those of `plain_logits`, whose forward begins at position 0.
    """
    tokens_BT, starts, num_wanted = arguments.get("token_ids_BT"), arguments.get("starts", [0]), 1
    if tokens_BT is None:
        lengths = [len(arguments["token_ids"])]
    else:
        lengths = arguments.get("lengths") or [tokens_BT.shape[1]] * tokens_BT.shape[0]
        num_wanted = arguments["logits_at_BJ"].numel()
    return Forward(
        num_tokens=sum(lengths),
        num_logits=min(num_wanted, sum(lengths)),
        num_positions=sum(start + length for start, length in zip(starts, lengths, strict=True)),
        num_pairs=sum(
            length * start + length * (length + 1) // 2 for start, length in zip(starts, lengths, strict=True)
        ),
    )


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
