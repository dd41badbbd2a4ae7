"""What a round asks of the target, and what comes back: a few numbers a row. The logits stay where they were computed.

A `Question` may be asked of another process, which has the target's last layers; what it needs of the rows' sequences
are their lengths and, for penalties, their tokens.

Shapes: B rows, K drafted tokens, J = K + 1 positions, V vocabulary.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch

from decoding.device import to_device
from decoding.sampling.batch import process_logits
from decoding.sampling.rows import Rows
from decoding.sampling.verify import Draft, judge, verify_rejection
from decoding.sequence import TokenLogprobs

# The batch's shape changes float32 logits by about 1e-6 of their size. Where the two best candidates lie nearer than
# this (in logits), rounding could decide, so the row is scored again alone. Other dtypes round too coarsely for that.
CLOSE_CALL = {torch.float32: 1e-4}


@dataclass(frozen=True)
class Question:
    """What the target is asked about the rows of a round; row b stands in slot b."""

    rows: Rows
    draft: Draft
    num_logprobs: tuple[int | None, ...]  # the most likely tokens wanted with each output token of a row; None: nothing

    @cached_property
    def starts(self) -> list[int]:
        """Where each row's first token, its newest committed one, stands."""
        return [len(sequence) - 1 for sequence in self.rows.sequences]

    @cached_property
    def token_ids_BJ(self) -> torch.Tensor:
        """Each row's newest committed token and its draft."""
        drafted_BK = self.draft.token_ids_BK
        newest = [sequence.token_ids[-1] for sequence in self.rows.sequences]
        return torch.cat([to_device(newest, drafted_BK.device)[:, None], drafted_BK], dim=1)

    @property
    def lengths(self) -> list[int] | None:
        """How many of its tokens each row really has, as the host knows it; None: all."""
        return None if self.draft.most_B is None else [1 + most for most in self.draft.most_B]


class RowVerdict(NamedTuple):
    """What came of one row's draft."""

    num_accepted: int
    next_token: int
    first_close_call: int  # first position where rounding could decide; the number of positions where there is none
    is_finite: bool  # whether the logits are numbers; if not, nothing else here means anything
    num_drafted: int
    draft_token_ids: list[int]  # K of them, those that were not drafted included
    logprobs: list[TokenLogprobs]  # of the accepted tokens and the next one, where they were wanted


class Decision(NamedTuple):
    """A token that was decided for one row alone."""

    token_id: int
    is_finite: bool  # whether the logits were numbers; if not, the token means nothing
    logprobs: list[TokenLogprobs]  # of this token, where they were wanted


class Answer:
    """The verdicts on all rows: computed, but perhaps still on their way from the device."""

    is_ready = True  # result() waits for nobody but the device

    def __init__(self, question: Question, logits_BJV: torch.Tensor, dtype: torch.dtype) -> None:
        """Judge the draft by the logits at its own places and the one behind them, of a target that runs in `dtype`.

        To be read before the target's next forward, which may use the memory of these logits.
        """
        rows, draft = question.rows, question.draft
        self._question, self._logits_BJV = question, logits_BJV
        if rows.verification == "rejection":
            num_positions = logits_BJV.shape[1]
            history = rows.history(draft.token_ids_BK, 0, num_positions)
            scores_BJV = process_logits(logits_BJV, rows.sampling, history)
            verdict = verify_rejection(scores_BJV, draft, rows.sampling, rows.positions(0, num_positions))
            is_finite_B = logits_BJV.amax((1, 2)).isfinite()
        else:
            close_call = CLOSE_CALL.get(dtype, 0.0)
            picks = rows.pick(logits_BJV, draft.token_ids_BK, 0, close_call)
            verdict = judge(picks, draft, rows.sampling, close_call)
            is_finite_B = picks.is_finite_BJ.all(-1)
        columns = (verdict.num_accepted_B, verdict.next_token_B, verdict.first_close_call_B, is_finite_B)
        columns_BC = torch.stack([column.long() for column in (*columns, draft.num_draft_tokens_B)], dim=1)
        self._packed = torch.cat([columns_BC, draft.token_ids_BK], dim=1)

    def result(self) -> list[RowVerdict]:
        """One for each row. The only values of a round that come back from the device."""
        verdicts = []
        for row, (accepted, next_token, close_call, is_finite, num_drafted, *drafted) in enumerate(
            self._packed.tolist()
        ):
            tokens, num_top = [*drafted[:accepted], next_token], self._question.num_logprobs[row]
            logprobs = token_logprobs(self._logits_BJV[row], tokens, num_top) if is_finite else []
            verdicts.append(
                RowVerdict(accepted, next_token, close_call, bool(is_finite), num_drafted, drafted, logprobs)
            )
        return verdicts


def decide(rows: Rows, accepted: Seq[int], logits_V: torch.Tensor, num_top: int | None) -> Decision:
    """The token of the only row after `accepted`, as the verifier decides it where there is no draft."""
    if not logits_V.amax().isfinite():
        return Decision(0, False, [])
    rows = replace(rows, num_draft_tokens=(0,), noises=None)
    accepted_1K = to_device([list(accepted)], logits_V.device, torch.int64)
    logits_11V = logits_V[None, None]
    if rows.verification == "coupled":
        token_id = int(rows.pick(logits_11V, accepted_1K, len(accepted)).token_ids_BJ)
    else:
        scores_11V = process_logits(logits_11V, rows.sampling, rows.history(accepted_1K, len(accepted), 1))
        nothing = Draft(accepted_1K[:, :0], torch.zeros_like(rows.sampling.keys_B))
        verdict = verify_rejection(scores_11V, nothing, rows.sampling, rows.positions(len(accepted), 1))
        token_id = int(verdict.next_token_B)
    return Decision(token_id, True, token_logprobs(logits_V[None], [token_id], num_top))


def token_logprobs(logits_JV: torch.Tensor, tokens: list[int], num_top: int | None) -> list[TokenLogprobs]:
    """Of these tokens, one at each of the first positions; nothing where nobody wants them."""
    if num_top is None:
        return []
    logprobs_JV = logits_JV[: len(tokens)].float().log_softmax(-1)
    chosen_J = logprobs_JV.gather(-1, to_device(tokens, logits_JV.device)[:, None])[:, 0].tolist()
    values_JK, ids_JK = logprobs_JV.topk(min(num_top, logprobs_JV.shape[-1]), dim=-1)
    return [
        TokenLogprobs(logprob, tuple(zip(ids, values, strict=True)))
        for logprob, ids, values in zip(chosen_J, ids_JK.tolist(), values_JK.tolist(), strict=True)
    ]
