"""Drafter: what proposes tokens. It may be wrong as often as it likes: the target's text does not depend on it.

Two sources: a lookup finds tokens in what is written already and costs no forward, so what it offers is known before
draft lengths are chosen; a draft model takes one forward a token. A drafter has one of them, both, or neither.

What a drafter proposes, and for which rows, may depend on committed tokens and on past acceptance. It must not depend
on the noise of positions still to come: so under rejection nothing may look at drafted tokens that fell.
"""

from collections.abc import Sequence as Seq
from typing import Protocol

from decoding.rows import Rows
from decoding.sequence import Sequence
from decoding.verify import Draft


class Drafter(Protocol):
    """Proposes continuations of the running rows. Row b of a round stands in slot b. Inherit for what is left out."""

    has_model: bool = False  # whether it can draft tokens with a draft model, a forward each

    def admit(self, slots: Seq[int], sequences: Seq[Sequence]) -> None:
        """Take in new sequences; whatever stood in those slots is gone."""
        ...

    def outlook(self, rows: Rows) -> Seq[Seq[float]] | None:
        """For each row the chance that the first 1, 2, ... tokens of what a lookup offers all stand; never rising.

        At most rows.num_draft_tokens[b] of them, none where nothing was found. None: this drafter looks nothing up.
        """
        return None

    def propose(self, rows: Rows) -> Draft:
        """At most rows.num_draft_tokens[b] tokens for row b; none is a fine answer."""
        ...

    def observe(self, rows: Rows, num_drafted: Seq[int], num_accepted: Seq[int]) -> None:
        """Learn from a round, whose tokens the rows' sequences hold by now."""
        return None

    def move(self, source: int, target: int) -> None:
        """Make slot `target` what slot `source` is; the sequence in `target` is gone."""
        return None

    def reset(self, slot: int) -> None:
        """Forget everything numeric about a slot: it has seen a value that is not finite."""
        return None
