"""Forced tokens: what a row's grammar allows alone, or would without other white space, is drafted without a forward.

Where the mask leaves nothing else the target accepts them; where white space is free they are guesses. Under rejection
they are point masses that follow from the committed tokens. A row with forced tokens has no draft by a model; a draft
that was looked up stays if it begins with them, since it may be longer.
"""

from collections.abc import Sequence as Seq

import torch

from decoding.drafters.base import point_masses, with_points
from decoding.sampling.rows import Rows
from decoding.sampling.verdicts import Draft
from decoding.sequence import Sequence


def foreseen_tokens(sequences: Seq[Sequence], limits: Seq[int]) -> list[list[int]]:
    """Return the forced tokens of each row and those foreseen behind them, at most `limits[b]` of row b.

    It is an empty list if no row has any.
    """
    forced = [
        row.matcher.foreseen(row.output_token_ids)[:limit] if row.matcher is not None and limit else []
        for row, limit in zip(sequences, limits, strict=True)
    ]
    return forced if any(forced) else []


def without_model(rows: Rows, forced: Seq[list[int]]) -> Rows:
    """Return the rows as the drafter gets them: one with forced tokens may look up, and has no draft by a model."""
    return rows.limited([up or not tokens for up, tokens in zip(rows.uses_lookup, forced, strict=True)])


def to_replace(draft: Draft, forced: Seq[list[int]]) -> list[list[int]]:
    """Return the forced tokens of the rows whose own draft does not begin with them; none for the other rows."""
    own = draft.token_ids_BK.tolist()
    counts = draft.num_draft_tokens_B.tolist()
    return [
        [] if tokens == drafted[: min(len(tokens), count)] else tokens
        for tokens, drafted, count in zip(forced, own, counts, strict=True)
    ]


def with_forced(draft: Draft, forced: Seq[list[int]]) -> Draft:
    """Return the draft in which the rows with forced tokens have these alone."""
    own = point_masses(list(forced), draft.token_ids_BK.device)
    is_forced_B = own.num_draft_tokens_B > 0
    num_draft_tokens_B = torch.where(is_forced_B, own.num_draft_tokens_B, draft.num_draft_tokens_B)
    first_B = torch.where(is_forced_B, 0, draft.token_ids_BK.shape[1] + own.token_ids_BK.shape[1])
    return with_points(draft, own, first_B, num_draft_tokens_B)
