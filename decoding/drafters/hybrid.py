"""HybridDrafter: per row and round either what a lookup offers or what the draft model drafts.

Which of the two a row takes is the schedule's choice (`rows.looks_up`), by expected tokens: the lookup states the
chance that its tokens stand (`SuffixDrafter`), the draft model has the row's running acceptance. Rows that look up cost
no draft steps; the draft model catches up with them when they return to it.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

import torch

from decoding.drafters.base import Drafter
from decoding.drafters.model import ModelDrafter
from decoding.drafters.suffix import SuffixDrafter
from decoding.rows import Rows
from decoding.sequence import Sequence
from decoding.verify import Draft


@dataclass
class SourceCounts:
    """What came from one source, and what of it stood."""

    num_drafts: int = 0  # rows and rounds
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0


class HybridDrafter(Drafter):
    """A lookup and a draft model, side by side."""

    has_model = True

    def __init__(self, lookup: SuffixDrafter, model: ModelDrafter) -> None:
        """Take over both."""
        self._lookup, self._model = lookup, model
        self.counts = {"lookup": SourceCounts(), "model": SourceCounts()}

    def admit(self, slots: Seq[int], sequences: Seq[Sequence]) -> None:
        """Both take them in."""
        self._lookup.admit(slots, sequences)
        self._model.admit(slots, sequences)

    def outlook(self, rows: Rows) -> list[list[float]]:
        """The lookup's."""
        return self._lookup.outlook(rows)

    def propose(self, rows: Rows) -> Draft:
        """Each row's tokens from its own source. Under rejection a looked-up token's law is a point mass on it."""
        looked_up = self._lookup.propose(_limited(rows, rows.looks_up))
        drafted = self._model.propose(_limited(rows, [not looks_up for looks_up in rows.looks_up]))
        if not any(drafted.most_B or ()):
            return looked_up
        assert looked_up.most_B is not None
        assert drafted.most_B is not None
        width = max(looked_up.token_ids_BK.shape[1], drafted.token_ids_BK.shape[1])
        looks_up_B1 = torch.tensor(rows.looks_up, device=rows.sampling.keys_B.device)[:, None]
        token_ids_BK = torch.where(
            looks_up_B1, _widened(looked_up.token_ids_BK, width), _widened(drafted.token_ids_BK, width)
        )
        probs_BKV = drafted.probs_BKV
        if probs_BKV is not None:
            probs_BKV = torch.nn.functional.pad(probs_BKV, (0, 0, 0, width - probs_BKV.shape[1]))
            point_masses_BKV = torch.zeros_like(probs_BKV).scatter_(-1, token_ids_BK[..., None], 1.0)
            probs_BKV = torch.where(looks_up_B1[..., None], point_masses_BKV, probs_BKV)
        return Draft(
            token_ids_BK,
            looked_up.num_draft_tokens_B + drafted.num_draft_tokens_B,
            probs_BKV,
            most_B=tuple(map(sum, zip(looked_up.most_B, drafted.most_B, strict=True))),
        )

    def observe(self, rows: Rows, num_drafted: Seq[int], num_accepted: Seq[int]) -> None:
        """The lookup learns all new tokens, but only of its own drafts what they were worth."""
        own_drafted = [n if up else 0 for up, n in zip(rows.looks_up, num_drafted, strict=True)]
        self._lookup.observe(rows, own_drafted, num_accepted)
        for looks_up, drafted, accepted in zip(rows.looks_up, num_drafted, num_accepted, strict=True):
            counts = self.counts["lookup" if looks_up else "model"]
            counts.num_drafts += drafted > 0
            counts.num_draft_tokens += drafted
            counts.num_accepted_tokens += accepted

    def move(self, source: int, target: int) -> None:
        """Both hand over what they know."""
        self._lookup.move(source, target)
        self._model.move(source, target)

    def reset(self, slot: int) -> None:
        """Only the draft model holds numbers."""
        self._model.reset(slot)


def _limited(rows: Rows, may_draft: Seq[bool]) -> Rows:
    limits = tuple(limit if may else 0 for limit, may in zip(rows.num_draft_tokens, may_draft, strict=True))
    return replace(rows, num_draft_tokens=limits)


def _widened(token_ids_BK: torch.Tensor, width: int) -> torch.Tensor:
    return torch.nn.functional.pad(token_ids_BK, (0, width - token_ids_BK.shape[1]))
