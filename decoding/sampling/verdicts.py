"""Drafts of a round, and verdicts: what the target decided about them, on the device and on the way to the host.

Shapes: B rows, K drafted tokens, J = K + 1 positions, C columns.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from decoding.sampling.logprobs import LineLogprobs, RoundLogprobs
from decoding.sequence import TokenLogprobs


@dataclass(frozen=True)
class Draft:
    """Drafted continuations of B sequences."""

    token_ids_BK: torch.Tensor  # int64; anything past a row's num_draft_tokens
    num_draft_tokens_B: torch.Tensor  # int64, 0..K
    probs_BKV: torch.Tensor | None = None  # what each token was drawn from; None: a point mass on the token
    max_draft_tokens_B: tuple[int, ...] = ()  # of a drafter: num_draft_tokens_B's upper bounds, known to the host

    def of(self, rows: slice) -> "Draft":
        """Return the drafts of some of the sequences."""
        probs_BKV = None if self.probs_BKV is None else self.probs_BKV[rows]
        bounds = self.max_draft_tokens_B[rows]
        return Draft(self.token_ids_BK[rows], self.num_draft_tokens_B[rows], probs_BKV, bounds)


class RowVerdict(NamedTuple):
    """What the target decided about one row's draft. If the logits are not finite, `next_token` has no meaning.

    `first_close_call` is the first position where rounding could decide, or the number of positions if there is none.
    """

    num_accepted: int
    next_token: int
    first_close_call: int
    is_finite: bool  # whether the logits are numbers
    num_drafted: int
    draft_token_ids: list[int]  # K token ids; those past num_drafted are padding
    logprobs: list[TokenLogprobs]  # of the accepted tokens and the next one, if the request asked for them


@dataclass(frozen=True)
class Verdicts:
    """What is accepted of B drafts: the first num_accepted tokens, followed by next_token (recovered, or bonus)."""

    num_accepted_B: torch.Tensor  # int64, 0..num_draft_tokens
    next_token_B: torch.Tensor  # int64
    first_close_call_B: torch.Tensor  # first position where the two best candidates nearly tie; J if there is none
    is_finite_B: torch.Tensor  # whether the logits are numbers

    def columns(self, drafted_BK: torch.Tensor, num_drafted_B: torch.Tensor) -> torch.Tensor:
        """Return all numbers of the verdicts [B, C], so that one copy brings them to the host."""
        counts = (self.num_accepted_B, self.next_token_B, self.first_close_call_B, self.is_finite_B, num_drafted_B)
        return torch.cat([torch.stack([count.long() for count in counts], dim=1), drafted_BK], dim=1)


def accept_if_equal(
    picked_BJ: torch.Tensor, drafted_BK: torch.Tensor, num_drafted_B: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return how many drafted tokens of each row equal the target's picks before one differs, and the pick there."""
    num_accepted_B = count_leading(picked_BJ[:, :-1] == drafted_BK, num_drafted_B)
    return num_accepted_B, picked_BJ.gather(1, num_accepted_B[:, None])[:, 0]


def count_leading(is_accepted_BK: torch.Tensor, num_drafted_B: torch.Tensor) -> torch.Tensor:
    """Return how many of each row's drafted tokens are accepted before the first that is not."""
    return (is_accepted_BK & exists(is_accepted_BK, num_drafted_B)).long().cumprod(-1).sum(-1)


def exists(like_BK: torch.Tensor, num_drafted_B: torch.Tensor) -> torch.Tensor:
    """Tell which places of a draft [B, K] have a token."""
    return torch.arange(like_BK.shape[1], device=like_BK.device) < num_drafted_B[:, None]


class OnItsWay:
    """Numbers of a device that are copied to the host, behind what the device was told before."""

    def __init__(self, numbers: torch.Tensor) -> None:
        """Start the copy."""
        self._on_host, self._copied = numbers, None
        if numbers.is_cuda:
            on_host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            self._on_host = on_host.copy_(numbers, non_blocking=True)
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record()

    def result(self) -> torch.Tensor:
        """Wait for the copy; return it."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._on_host


class SentVerdicts:
    """The verdicts on all rows: computed, but perhaps still on their way from the device."""

    is_ready = True  # result() waits for nothing but the device

    def __init__(
        self,
        columns_BC: torch.Tensor,
        logprobs: RoundLogprobs | LineLogprobs | None = None,
        recheck: Callable[[list[RowVerdict]], object] | None = None,
    ) -> None:
        """Start one copy to the host, for which `result` waits. Without grammars a round copies nothing else.

        The last columns of each line may be those of `LineLogprobs`. `recheck` may replace verdicts of its list.
        """
        self._shape, self._logprobs, self._recheck = columns_BC.shape, logprobs, recheck
        packed = columns_BC.flatten()
        if isinstance(logprobs, RoundLogprobs) and logprobs.packed:
            packed = torch.cat([packed, *logprobs.packed])
        self._packed = OnItsWay(packed)

    def result(self) -> list[RowVerdict]:
        """Return one verdict for each row: the one wait of a round."""
        packed, num_columns = self._packed.result(), self._shape.numel()
        lines_BC, beside = packed[:num_columns].view(self._shape), packed[num_columns:]
        if isinstance(self._logprobs, LineLogprobs):
            num_own = self._shape[1] - self._logprobs.num_columns
            lines_BC, beside = lines_BC[:, :num_own], lines_BC[:, num_own:]
        verdicts = []
        for columns in lines_BC.tolist():
            accepted, next_token, close_call, is_finite, num_drafted, *drafted = columns
            verdicts.append(RowVerdict(accepted, next_token, close_call, bool(is_finite), num_drafted, drafted, []))
        if self._logprobs is not None:
            num_tokens = [verdict.num_accepted + 1 for verdict in verdicts]
            for row, found in self._logprobs.of_rows(beside, num_tokens):
                if verdicts[row].is_finite:
                    verdicts[row] = verdicts[row]._replace(logprobs=found)
        if self._recheck is not None:
            self._recheck(verdicts)
        return verdicts
