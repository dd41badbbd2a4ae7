"""Target: the model whose text is written, as the engine uses it, in this process or in others.

No lengths of rows are kept here: each request names its rows' slots and starts.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from collections.abc import Sequence as Seq
from functools import cached_property
from typing import Protocol, TypeVar

import torch

from decoding.cache.features import FeatureTap
from decoding.device import name_of, to_device
from decoding.sampling.judging import MasksBeside, ScoreRequest, behind, decide, judge
from decoding.sampling.logprobs import Stretch, asked_logprobs, in_forwards
from decoding.sampling.rows import Rows
from decoding.sampling.verdicts import RowVerdict, SentVerdicts
from decoding.sequence import TokenLogprobs

_TIMED_START = 64  # positions


_T = TypeVar("_T")


class SlotsLostError(RuntimeError):
    """What the slots held is lost, for every session. The target can be used again, after `allocate`."""


def once_more(do: Callable[[], _T]) -> _T:
    """Return what `do` returns, which allocates its slots itself; do it again if they are lost over it, once."""
    try:
        return do()
    except SlotsLostError:
        return do()


class PendingVerdicts(Protocol):
    """The verdicts on a round that are not computed yet, or not received."""

    @property
    def is_ready(self) -> bool:
        """Whether `result` waits for no other process."""

    def result(self) -> list[RowVerdict]:
        """Return the verdict on each row of the request."""


class SlotCache(Protocol):
    """The engine's operations on whole slots of a cache; see `decoding/cache/kv_cache.py`."""

    @property
    def is_paged(self) -> bool: ...
    def reserve(self, slot: int, first: int, end: int) -> bool: ...
    def copy(self, source: int, target: int, length: int) -> None: ...
    def swap(self, first: int, second: int, first_length: int, second_length: int) -> None: ...
    def zero(self, slot: int) -> None: ...
    def is_finite(self, slot: int, length: int) -> bool: ...
    def longest(self, slot: int, length: int) -> int: ...
    @property
    def has_states(self) -> bool: ...


def timed_start(num_positions: int, num_tokens: int) -> int:
    """Return the first position of timed tokens: behind some others, as in a round, if there is room."""
    return max(0, min(_TIMED_START, num_positions - num_tokens))


class Target(Protocol):
    """A model over slots that judges drafts.

    One that runs in other processes may raise SlotsLostError from everything that uses slots or decides.
    """

    device: torch.device  # of the tensors in requests
    dtype: torch.dtype
    vocab_size: int
    hidden_size: int  # of its residual stream
    max_positions: int | None  # the longest context; None: no limit
    eos_token_ids: frozenset[int]
    close_call: float  # the margin in logits within which rounding could decide between two tokens
    tap: FeatureTap | None  # set by `hand_out`; None: no drafter reads features, or not of what is read at this moment

    @property
    def runs_on(self) -> str:
        """The name of the processor: "cpu", or that of the GPU."""

    @property
    def fallback(self) -> str:
        """Why it runs otherwise than it was to, and slower, as `SlotNetwork.fallback`; empty if it does not."""

    @property
    def cache(self) -> SlotCache | None:
        """Keys and values; None before `allocate`."""

    @property
    def is_batch_invariant(self) -> bool:
        """Whether a token's logits are the same, bit for bit, in any batch, slot and split of its row."""

    def facts(self) -> dict[str, bool | int]:
        """Return how the model runs, for the log."""

    def share(self) -> "Target":
        """Return the same model with a cache of its own and no tap. One thread drives all that share a model."""

    def hand_out(self, tap: FeatureTap | None) -> None:
        """Give the features of all tokens that are written into slots to `tap` from now on; None: to no drafter.

        Prefills, log-probabilities and decisions in a slot have handed them out when they return, a score when its
        verdicts are there. What uses no slot does not, nor does `seconds`, which computes them. Logits, keys and values
        stay the same, bit for bit. Raises ValueError if the target has no such features.
        """

    def allocate(self, num_slots: int, num_positions: int, num_draft_tokens: int = 0) -> None:
        """Reserve a fresh cache of slots x positions; the contents of an earlier one are lost.

        At most `num_draft_tokens` of a row are verified at once, behind its newest token; with more of them, slots with
        states take more memory later.
        """

    def release(self) -> None:
        """Free the cache's memory; `allocate` comes before any other use."""

    def prefill(self, slots: Seq[int], token_ids: Seq[Seq[int]], starts: Seq[int] | None = None) -> None:
        """Write the keys and values of each row's tokens into its slot, from its start (0 by default) on."""

    def score(self, request: ScoreRequest) -> PendingVerdicts:
        """Write the request's tokens into the slots and judge its draft."""

    def decide(
        self, rows: Rows, accepted: Seq[int], num_logprobs: int | None, in_slot: int | None = None
    ) -> RowVerdict:
        """Decide the token of the only row after its own tokens and `accepted`, from that row alone.

        It takes one forward without a cache; with `in_slot`, that slot is filled with the row's tokens instead.
        """

    def logprobs(self, stretches: Seq[Stretch]) -> list[list[TokenLogprobs]]:
        """Write stretches into their slots, each of which has one at most; return what each of them asks for.

        Never are more than `LOGITS_AT_ONCE` logits held, and their float32 log-probabilities beside them.
        """

    def seconds(self, num_rows: int, num_tokens: int) -> float:
        """Measure one forward over `num_tokens` tokens of each row, as in a round. The cache is overwritten."""

    def seconds_of_several(self, num_rows: int, num_tokens: int, num_forwards: int) -> float | None:
        """Measure such forwards, sent one behind the other as by several lanes, up to the last answer.

        None if a forward takes this process, so that no other one goes on meanwhile.
        """


class LocalTarget(ABC):
    """Requests served from logits that are computed in this process."""

    device: torch.device
    dtype: torch.dtype
    vocab_size: int

    @property
    def runs_on(self) -> str:
        return name_of(self.device)

    @abstractmethod
    def forward(
        self,
        starts: Seq[int],
        token_ids_BT: torch.Tensor,
        logits_at_BJ: torch.Tensor,
        slots: Seq[int] | None = None,
        lengths: Seq[int] | None = None,
        *,
        is_prompt: bool = False,
    ) -> torch.Tensor:
        """Return logits [B, J, V]; see `LanguageModel.forward`."""

    @abstractmethod
    def prefill(self, slots: Seq[int], token_ids: Seq[Seq[int]], starts: Seq[int] | None = None) -> None:
        """Read prompts, as `Target.prefill` says."""

    @abstractmethod
    def plain_logits(self, token_ids: Seq[int]) -> torch.Tensor:
        """Return logits [V] after these tokens from one forward without a cache: a function of the tokens alone."""

    def score(self, request: ScoreRequest) -> SentVerdicts:
        """Judge a draft, as `Target.score` says; the forward is done, or queued on the device, when this returns."""
        if request.rows.have_grammars:
            request.draft_on_host  # noqa: B018 - read now: behind the forward the copy would wait for it
        tokens_BJ = request.token_ids_BJ
        every_BJ = torch.arange(tokens_BJ.shape[1], device=tokens_BJ.device).expand_as(tokens_BJ)
        try:
            if self.device.type == "cpu":
                self._masks_beside.begin(request, self.when_busy)
            logits_BJV = self.forward(request.starts, tokens_BJ, every_BJ, lengths=request.lengths)
        finally:
            masks = self._masks_beside.take()
        return judge(request, logits_BJV, masks)

    def seconds_of_several(self, num_rows: int, num_tokens: int, num_forwards: int) -> float | None:
        return None

    def when_busy(self, begin: Callable[[], None]) -> None:
        """Call `begin` when the next forward leaves the interpreter to other threads; now, if that is not known."""
        begin()

    @cached_property
    def _masks_beside(self) -> MasksBeside:
        return MasksBeside()

    def decide(
        self, rows: Rows, accepted: Seq[int], num_logprobs: int | None, in_slot: int | None = None
    ) -> RowVerdict:
        (sequence,) = rows.sequences
        token_ids = [*sequence.token_ids, *accepted]
        if in_slot is None:
            return decide(behind(rows, accepted), self.plain_logits(token_ids), num_logprobs)
        *before, newest = token_ids
        self.prefill([in_slot], [before])
        newest_11 = to_device([[newest]], self.device)
        logits_V = self.forward([len(before)], newest_11, torch.zeros_like(newest_11), slots=[in_slot])[0, 0]
        return decide(behind(rows, accepted), logits_V, num_logprobs)

    def logprobs(self, stretches: Seq[Stretch]) -> list[list[TokenLogprobs]]:
        found: list[list[TokenLogprobs]] = [[] for _ in stretches]
        for forward in in_forwards(stretches, self.vocab_size):
            logits_BJV = self._logits_behind([stretch for _, stretch in forward])
            for logits_JV, (number, stretch) in zip(logits_BJV, forward, strict=True):
                found[number] += asked_logprobs([stretch], logits_JV.__getitem__, self.vocab_size)[0]
        return found

    def _logits_behind(self, stretches: Seq[Stretch]) -> torch.Tensor:
        """Return logits [B, J, V] behind the places of each stretch; behind a place again where it has fewer."""
        lengths, places = [len(each.token_ids) for each in stretches], [each.places for each in stretches]
        width, num_places = max(lengths), max(map(len, places))
        tokens = [[*each.token_ids, *[0] * (width - len(each.token_ids))] for each in stretches]
        wanted = [[*each, *[each[-1] if each else 0] * (num_places - len(each))] for each in places]
        return self.forward(
            [stretch.start for stretch in stretches],
            to_device(tokens, self.device),
            to_device(wanted, self.device, torch.int64),
            slots=[stretch.slot for stretch in stretches],
            lengths=lengths,
            is_prompt=True,
        )
