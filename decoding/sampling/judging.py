"""What a round asks of the target, and the verdicts that come back: a few numbers a row. The logits stay on the device.

A `ScoreRequest` may be sent to another process, which has the target's last layers. Of the rows' sequences that process
needs the lengths and, for penalties, the tokens.

Shapes: B rows, K drafted tokens, J = K + 1 positions, V vocabulary.
"""

from collections.abc import Callable, Collection
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch

from decoding.device import to_device
from decoding.sampling.logprobs import RoundLogprobs
from decoding.sampling.masks import NO_MASKS, TokenMasks
from decoding.sampling.rows import Rows
from decoding.sampling.verdicts import Draft, RowVerdict, SentVerdicts, Verdicts
from decoding.sequence import Sequence

# The batch's shape changes float32 logits by about 1e-6 of their size. Where the two best candidates lie nearer than
# this (in logits of a size up to 10), rounding could decide, so the row is scored again alone.
_LEAST_MARGIN = 1e-4
# A probe sees a few tokens, and a corpus millions: the margin is this many times the deviation that the probe found.
_MARGIN_OF_DEVIATION = 20


def close_call_margin(dtype: torch.dtype, deviation: float = 0.0) -> float:
    """Return the margin of close calls for a model whose logits deviate by `deviation` of their size, in logits.

    It is 0 (no call is close) where numbers are not float32: others round too coarsely for a margin.
    """
    return max(_LEAST_MARGIN, _MARGIN_OF_DEVIATION * 10 * deviation) if dtype is torch.float32 else 0.0


@dataclass(frozen=True)
class ScoreRequest:
    """The rows of a round and their drafts, to be scored by the target; row b is in slot b."""

    rows: Rows
    draft: Draft
    num_logprobs: tuple[int | None, ...]  # likely tokens to list with each output token of a row; None: no logprobs
    close_call: float = 0.0  # the target's margin, as `verify_coupled` uses it

    @cached_property
    def starts(self) -> list[int]:
        """The position of each row's first token, which is its newest committed one."""
        return [len(sequence) - 1 for sequence in self.rows.sequences]

    @cached_property
    def token_ids_BJ(self) -> torch.Tensor:
        """Each row's newest committed token and its draft."""
        drafted_BK = self.draft.token_ids_BK
        newest = [sequence.token_ids[-1] for sequence in self.rows.sequences]
        return torch.cat([to_device(newest, drafted_BK.device)[:, None], drafted_BK], dim=1)

    @cached_property
    def draft_on_host(self) -> tuple[list[list[int]], list[int]]:
        """The drafted tokens of each row, and how many there are. To read them waits for what the device was told."""
        return self.draft.token_ids_BK.tolist(), self.draft.num_draft_tokens_B.tolist()

    def masks(self, among: Collection[int] | None = None) -> TokenMasks | None:
        """Compute the masks of the rows' grammars at all positions, on the host: those of all rows, or `among` some."""
        if not self.rows.have_grammars:
            return None
        if among is not None and not among:
            return NO_MASKS
        tokens, counts = self.draft_on_host
        return TokenMasks.of(self.rows.sequences, tokens, 0, self.draft.token_ids_BK.shape[1] + 1, counts, among)

    def take(self, rows: Seq[int]) -> "ScoreRequest":
        """Return the request of some of the rows."""
        num_logprobs = tuple(self.num_logprobs[row] for row in rows)
        return ScoreRequest(self.rows.take(rows), self.draft.take(rows), num_logprobs, self.close_call)

    @property
    def lengths(self) -> list[int]:
        """The number of tokens that each row really has, as the host knows it."""
        return [1 + limit for limit in self.draft.max_draft_tokens_B]


def _stands(sequence: Sequence, verdict: RowVerdict) -> bool:
    """Return whether a row's grammar allows what was decided without it."""
    matcher, next_token = sequence.matcher, verdict.next_token
    assert matcher is not None, "only these are checked"
    accepted = verdict.draft_token_ids[: verdict.num_accepted]
    new = matcher.upto_end([*accepted, next_token]) if accepted else [next_token]
    return not verdict.is_finite or matcher.allows(sequence.output_token_ids, new)


def judge(request: ScoreRequest, logits_BJV: torch.Tensor, masks: TokenMasks | None = None) -> SentVerdicts:
    """Judge each row's draft by the target's logits: K drafted positions and the next one.

    `masks` are those of all rows with a grammar, if they were computed beside the forward. Else some rows are judged
    without theirs (`Rows.checked_later`), and again where a grammar forbids their tokens. The best of all tokens is the
    best of those that a grammar allows, if it is one of them: to check a few tokens takes much less time than masks do.
    """
    draft, rows = request.draft, request.rows
    recheck = partial(_check, request, logits_BJV) if masks is None and rows.checked_later else None
    if masks is None:
        masks = request.masks(among=rows.masked_first)  # a device is at work on the forward meanwhile
    verdicts = verify_rows(rows, draft, draft.token_ids_BK, 0, logits_BJV, request.close_call, masks)
    return send(verdicts, draft, logits_BJV, request.num_logprobs, recheck)


def send(
    verdicts: Verdicts,
    draft: Draft,
    logits_BJV: torch.Tensor,
    num_logprobs: Seq[int | None],
    recheck: Callable[[list[RowVerdict]], None] | None = None,
) -> SentVerdicts:
    """Send verdicts to the host, with the log-probabilities of the rows that ask for as many likely tokens."""
    logprobs = RoundLogprobs(
        verdicts.num_accepted_B, verdicts.next_token_B, draft.token_ids_BK, logits_BJV, num_logprobs
    )
    return SentVerdicts(verdicts.columns(draft.token_ids_BK, draft.num_draft_tokens_B), logprobs, recheck)


def _check(request: ScoreRequest, logits_BJV: torch.Tensor, verdicts: list[RowVerdict]) -> None:
    """Judge those rows again that were judged without masks and got tokens which their grammars forbid."""
    sequences = request.rows.sequences
    wrong = [row for row in request.rows.checked_later if not _stands(sequences[row], verdicts[row])]
    if not wrong:
        return
    part, logits_BJV = request.take(wrong), logits_BJV[to_device(wrong, logits_BJV.device)]
    judged = verify_rows(part.rows, part.draft, part.draft.token_ids_BK, 0, logits_BJV, part.close_call)
    again = send(judged, part.draft, logits_BJV, part.num_logprobs).result()
    for row, verdict in zip(wrong, again, strict=True):
        matcher = sequences[row].matcher
        assert matcher is not None, "only these are checked"
        matcher.note_stray(len(sequences[row].output_token_ids))
        verdicts[row] = verdict


def decide(rows: Rows, accepted: Seq[int], logits_V: torch.Tensor, num_top: int | None) -> RowVerdict:
    """Return the verdict on the only row after `accepted`, with an empty draft: `next_token` follows these tokens."""
    rows = replace(rows, num_draft_tokens=(0,), round_noise=None)
    # As a round decides: whether a mask can be computed must not matter where none is needed.
    if rows.have_grammars and not rows.need_masks:
        (sequence,) = rows.sequences
        assert sequence.matcher is not None, "such rows have a grammar"
        without = rows.with_masks(NO_MASKS)
        verdict = _decided(without, accepted, logits_V, num_top)
        if verdict.is_finite and sequence.matcher.allows(sequence.output_token_ids, [*accepted, verdict.next_token]):
            return verdict
    return _decided(rows, accepted, logits_V, num_top)


def _decided(rows: Rows, accepted: Seq[int], logits_V: torch.Tensor, num_top: int | None) -> RowVerdict:
    accepted_1K = to_device([list(accepted)], logits_V.device, torch.int64)
    nothing = Draft(accepted_1K[:, :0], torch.zeros_like(rows.sampling.keys_B))
    logits_11V = logits_V[None, None]
    verdicts = verify_rows(rows, nothing, accepted_1K, len(accepted), logits_11V)
    (verdict,) = send(verdicts, nothing, logits_11V, [num_top]).result()
    return verdict


def verify_rows(
    rows: Rows,
    draft: Draft,
    uncommitted_BK: torch.Tensor,
    first: int,
    logits_BJV: torch.Tensor,
    close_call: float = 0.0,
    masks: TokenMasks | None = None,
) -> Verdicts:
    """Return the verdict on a draft by the rows' own rule.

    The draft begins `first` tokens behind each row's committed ones. `uncommitted_BK` are these tokens and the drafted
    ones: penalties count the tokens before a position. Without `masks` they are those of all rows.
    """
    if masks is None:
        masks = rows.masks(uncommitted_BK, first, logits_BJV.shape[1], draft.num_draft_tokens_B)
    return rows.rule.judge(rows, draft, uncommitted_BK, first, logits_BJV, close_call, masks)
