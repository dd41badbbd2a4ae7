"""Drafter: proposes tokens. It may be wrong any number of times: the target's text does not depend on it.

There are two sources. A lookup finds tokens in what is written already and costs no forward, so its offer is known
before draft lengths are chosen. A draft model takes one forward a token. A drafter has one of them, both, or neither.

What a drafter proposes, and for which rows, may depend on committed tokens and on past acceptance. It must not depend
on the noise of positions still to come; therefore, under rejection, nothing may depend on rejected tokens.
"""

from collections.abc import Sequence as Seq
from typing import Any

import torch

from decoding.cache.features import FeatureTap
from decoding.device import to_device
from decoding.fused.live_weights import LiveWeights
from decoding.sampling.rows import Rows
from decoding.sampling.verdicts import Draft
from decoding.sequence import Sequence


class Drafter:
    """Proposes continuations of the running rows. Row b of a round is in slot b. Only `propose` has no default."""

    is_remote: bool = False  # whether it drafts in another process, while this process does other work
    reads_late: bool = False  # whether it reads texts only when it drafts: to tell it of rows takes no time

    @property
    def tap(self) -> FeatureTap | None:
        """What the target must hand out to it, if it reads the target's features."""
        return None

    @property
    def num_read_again(self) -> int:
        """How many of the first tokens that two rows share are read again for each, the last ones.

        A drafter pairs the features of a token with the token behind it, so it is one where features are read.
        """
        return int(self.tap is not None)

    @property
    def has_model(self) -> bool:
        """Whether a draft model can be used now; one in another process may become unreachable and return."""
        return False

    @property
    def weights(self) -> LiveWeights | None:
        """The weights of its draft model or head, if that is in this process."""
        return None

    @property
    def parts(self) -> "tuple[Drafter, ...]":
        """What it is made of, which several drafters may share; itself, if it is one piece."""
        return (self,)

    def renew(self) -> None:
        """Forget what was computed with weights that have been replaced, and that a rest was asked for.

        What follows from the target's features stays: the engine has all rows read again.
        """

    def begin(self, slot: int, donor: int | None, num_shared: int) -> None:
        """Prepare `slot` for a prompt whose first `num_shared` tokens are in slot `donor` (perhaps the same one)."""

    @property
    def is_paged(self) -> bool:
        """Whether it has memory for a row only as far as that is reserved."""
        return any(part.is_paged for part in self.parts if part is not self)

    def reserve(self, slot: int, first: int, end: int) -> bool:
        """Take care that it may write these positions of a slot, as `KVCache.reserve`; False if it has no memory."""
        return all(part.reserve(slot, first, end) for part in self.parts if part is not self)

    def num_copyable(self, slot: int, num_shared: int) -> int:
        """Return how many of the first `num_shared` tokens in `slot` a newcomer shares, to draft behind them.

        They are fewer than all where the features of a later one were not handed out.
        """
        return num_shared

    def prefill(self, slots: Seq[int], prompts: Seq[Seq[int]]) -> None:
        """Read the beginnings of the prompts in these slots, as far as the target has read them."""

    def admit(self, slots: Seq[int], sequences: Seq[Sequence]) -> None:
        """Take in sequences whose prompts are complete: they take part in every round from now on."""

    def lookup_survival(self, rows: Rows) -> Seq[Seq[float]] | None:
        """Return for each row the chance that the first 1, 2, ... tokens that a lookup offers are all accepted.

        A list never rises, has at most rows.num_draft_tokens[b] entries, and is empty if nothing was found. A drafter
        without a lookup returns None.
        """
        return None

    def ask(self, rows: Rows) -> None:
        """Send the request for a draft, if another process drafts; `propose` follows, with the same rows."""

    def propose(self, rows: Rows) -> Draft:
        """Draft at most rows.num_draft_tokens[b] tokens for row b, or none."""
        raise NotImplementedError

    def without_model(self, rows: Rows) -> list[list[int]]:
        """Return what `propose` drafts for each row without a model or head, and not behind what these drafted."""
        return [[] for _ in rows.sequences]

    def observe(self, rows: Rows, num_drafted: Seq[int], num_accepted: Seq[int]) -> None:
        """Learn from a round whose tokens have been committed to the rows' sequences."""

    def rest(self) -> None:
        """Postpone reading prompts: no draft is expected soon, and the next one reads what it needs."""

    def swap(self, first: int, second: int) -> None:
        """Exchange what is known of two slots; either may be empty, or hold a prompt that is not complete."""

    def reset(self, slot: int) -> None:
        """Forget all numbers of a slot, in which a value that is not finite occurred."""


class NoDrafter(Drafter):
    """Plain decoding, as the empty draft: each round yields the target's own next token."""

    def propose(self, rows: Rows) -> Draft:
        keys_B = rows.sampling.keys_B
        return Draft(keys_B.new_zeros(len(keys_B), 0), torch.zeros_like(keys_B), max_draft_tokens_B=(0,) * len(keys_B))


def allowed_part(sequence: Sequence, tokens: list[int], drafted: Seq[int] = ()) -> list[int]:
    """Return the first of these tokens that the row's grammar allows behind its own and the `drafted` ones.

    Without a grammar that is all of them. What was looked up may be anything, and what a grammar forbids would be
    rejected after it took a place in the round.
    """
    if sequence.matcher is None or not tokens:
        return tokens
    return tokens[: max(0, sequence.matcher.num_allowed(sequence.output_token_ids, [*drafted, *tokens]) - len(drafted))]


def point_masses(proposals: list[list[int]], device: torch.device) -> Draft:
    """Make a draft of these tokens, one list a row, which were chosen without any noise."""
    lengths = [len(proposal) for proposal in proposals]
    width = max(lengths)
    return Draft(
        to_device([p + [0] * (width - len(p)) for p in proposals], device, torch.int64),
        to_device(lengths, device),
        max_draft_tokens_B=tuple(lengths),
    )


def with_points(draft: Draft, points: Draft, first_B: torch.Tensor, num_draft_tokens_B: torch.Tensor) -> Draft:
    """Return a draft that has the tokens of `points` at the places of each row from `first_B` on, as point masses."""
    width = max(points.token_ids_BK.shape[1], draft.token_ids_BK.shape[1])
    points_BK, drafted_BK = (
        torch.nn.functional.pad(ids_BK, (0, width - ids_BK.shape[1]))
        for ids_BK in (points.token_ids_BK, draft.token_ids_BK)
    )
    is_point_BK = torch.arange(width, device=first_B.device) >= first_B[:, None]
    token_ids_BK = torch.where(is_point_BK, points_BK, drafted_BK)
    probs_BKV = draft.probs_BKV
    if probs_BKV is not None:
        probs_BKV = torch.nn.functional.pad(probs_BKV, (0, 0, 0, width - probs_BKV.shape[1]))
        point_masses_BKV = torch.zeros_like(probs_BKV).scatter_(-1, token_ids_BK[..., None], 1.0)
        probs_BKV = torch.where(is_point_BK[..., None], point_masses_BKV, probs_BKV)
    bounds = zip(points.max_draft_tokens_B, draft.max_draft_tokens_B, strict=True)
    return Draft(token_ids_BK, num_draft_tokens_B, probs_BKV, tuple(most or other for most, other in bounds))


def swap_entries(table: dict[int, Any], first: int, second: int) -> None:
    """Exchange the entries of a table for two slots; either may be missing."""
    held = {second: table.pop(first, None), first: table.pop(second, None)}
    table.update({slot: value for slot, value in held.items() if value is not None})
