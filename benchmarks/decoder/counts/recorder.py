"""ForwardRecorder: which forwards a run made, and how long the same ones take with nothing in between.

While it records it stands in front of each model's `forward`; otherwise nothing does. Forwards of one shape (rows,
tokens, positions read) are taken to last the same, so one of each is kept and replayed. What each forward must read and
compute is counted exactly, for `work.py`.

Where rounds overlap on a GPU (`decoding/engine/rounds/overlapped/rounds_ahead.py`), the host starts no forwards but
whole rounds: draft, forward of the target, picks and verdict. Such a round is kept as one shape of the target's phase.
"""

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch

from benchmarks.decoder.counts.whole_rounds import forwards_of, watching_rounds, with_states
from benchmarks.harness import seconds_of
from benchmarks.roofline.model_size import Forward
from decoding.cache.kv_cache import LENGTH_BUCKET
from decoding.network.language_model import LanguageModel

if TYPE_CHECKING:
    from decoding.engine.rounds.overlapped.inputs import RoundInputs
    from decoding.engine.rounds.overlapped.rounds import DeviceRounds
    from decoding.gpu.pick_table import PickTable

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

    phase: Phase  # prefill: of either model, no logits wanted; target: also whole rounds
    again: "Callable[[DeviceRounds | None], object]"  # on the rounds of an engine over the present caches
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
        """Record what the models do meanwhile, in engines that exist already."""
        with ExitStack() as undo:
            for role, model in self.models.items():
                for name in ("forward", "plain_logits"):
                    setattr(model, name, partial(self._record, role, model, getattr(model, name)))
                    undo.callback(delattr, model, name)  # what is left is the class's own
            undo.enter_context(watching_rounds(self._record_round))
            yield

    def count(self, phase: Phase) -> int:
        """Return the number of forwards of a phase."""
        return sum(count for (of_phase, _, _), count in self.forwards.items() if of_phase == phase)

    @torch.inference_mode()
    def replay(self, rounds: "DeviceRounds | None" = None) -> RawSeconds:
        """Run each shape once more, by itself, and sum over what was recorded. The caches are overwritten.

        `rounds` are those of an engine over the present caches, if its rounds overlap.
        """
        seconds = {"prefill": 0.0, "target": 0.0, "draft": 0.0}
        device = self.models["target"].device
        times = _REPEATS[device.type]
        for recorded in self.shapes.values():
            again = partial(recorded.again, rounds)
            for _ in range(_UNTIMED[device.type]):
                again()
            seconds[recorded.phase] += recorded.count * seconds_of(again, device, times)
        return RawSeconds(**seconds)

    def _record_round(
        self, rounds: "DeviceRounds", inputs: "RoundInputs", table: "PickTable", num_visible: int
    ) -> None:
        inputs = with_states(rounds, inputs)
        scored, steps = forwards_of(inputs)
        bucket = -(-num_visible // LENGTH_BUCKET)
        shape = (
            "round",
            len(inputs.limits),
            sum(inputs.is_active),
            len(steps),
            scored.num_tokens,
            bucket,
            table.num_stop_ids,
        )
        if shape not in self.shapes:
            self.shapes[shape] = Recorded("target", lambda present: _of(present).start(inputs, table, num_visible))
        self.shapes[shape].count += 1
        self.forwards["target", "target", scored] += 1
        self.forwards.update(("draft", "draft", step) for step in steps)

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
            self.shapes[shape] = Recorded(phase, lambda _: _again(model, given, lambda: original(*args, **kwargs)))
        self.shapes[shape].count += 1
        self.forwards[phase, role, size_of(given)] += 1
        return original(*args, **kwargs)


def _again(model: LanguageModel, given: Mapping[str, Any], forward: Callable[[], torch.Tensor]) -> torch.Tensor:
    """Run a forward once more, with any states behind the tokens that its rows had: their own may be forgotten."""
    starts = given.get("starts", ())
    for slot, start in zip(given.get("slots") or range(len(starts)), starts, strict=True):
        assert model.cache is not None, "it was used in the forward"
        model.cache.pretend(slot, start)
    return forward()


def size_of(arguments: Mapping[str, Any]) -> Forward:
    """Return how many tokens a forward has, how many logits are wanted, and which keys it reads.

    Takes the arguments of `LanguageModel.forward`, or those of `plain_logits`, whose forward begins at position 0.
    """
    tokens_BT = arguments.get("token_ids_BT")
    if tokens_BT is None:
        return Forward.of_rows([0], [len(arguments["token_ids"])], num_logits=1)
    lengths = arguments.get("lengths") or [tokens_BT.shape[1]] * tokens_BT.shape[0]
    return Forward.of_rows(arguments["starts"], lengths, arguments["logits_at_BJ"].numel())


def _of(rounds: "DeviceRounds | None") -> "DeviceRounds":
    assert rounds is not None, "rounds that overlapped are replayed by an engine whose rounds do"
    return rounds


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
