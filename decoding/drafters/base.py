"""Drafter: what proposes tokens. It may be wrong as often as it likes: the target's text does not depend on it.

Two sources: a lookup finds tokens in what is written already and costs no forward, so what it offers is known before
draft lengths are chosen; a draft model takes one forward a token. A drafter has one of them, both, or neither.

What a drafter proposes, and for which rows, may depend on committed tokens and on past acceptance. It must not depend
on the noise of positions still to come: so under rejection nothing may look at drafted tokens that fell.
"""

from collections.abc import Sequence as Seq
from typing import Any, Protocol

from decoding.sampling.rows import Rows
from decoding.sampling.verify import Draft
from decoding.sequence import Sequence


class Drafter(Protocol):
    """Proposes continuations of the running rows. Row b of a round stands in slot b. Inherit for what is left out."""

    is_remote: bool = False  # whether it drafts in another process, while this one does something else

    @property
    def has_model(self) -> bool:
        """Whether it can draft tokens with a draft model, a forward each; one that is out of reach may come back."""
        return False

    def begin(self, slot: int, donor: int | None, num_shared: int) -> None:
        """A new prompt comes to `slot`; its first `num_shared` tokens stand in slot `donor` (maybe the same one)."""
        return None

    def prefill(self, slots: Seq[int], prompts: Seq[Seq[int]]) -> None:
        """So much of the prompts in these slots, from their beginnings, has been read by the target."""
        return None

    def admit(self, slots: Seq[int], sequences: Seq[Sequence]) -> None:
        """The prompts in these slots are complete: their sequences are in every round from here on."""
        return None

    def lookup_survival(self, rows: Rows) -> Seq[Seq[float]] | None:
        """For each row the chance that the first 1, 2, ... tokens of what a lookup offers all stand; never rising.

        At most rows.num_draft_tokens[b] of them, none where nothing was found. None: this drafter looks nothing up.
        """
        return None

    def ask(self, rows: Rows) -> None:
        """Begin to draft for these rows, if that is done elsewhere; `propose` follows, with the same rows."""
        return None

    def propose(self, rows: Rows) -> Draft:
        """At most rows.num_draft_tokens[b] tokens for row b; none is a fine answer."""
        ...

    def observe(self, rows: Rows, num_drafted: Seq[int], num_accepted: Seq[int]) -> None:
        """Learn from a round, whose tokens the rows' sequences hold by now."""
        return None

    def rest(self) -> None:
        """Nobody is about to draft: what a draft would have to read may wait until somebody does."""
        return None

    def swap(self, first: int, second: int) -> None:
        """Two slots change places; either may have nobody in it, or a prompt that is not complete."""
        return None

    def reset(self, slot: int) -> None:
        """Forget everything numeric about a slot: it has seen a value that is not finite."""
        return None


def swap_entries(table: dict[int, Any], first: int, second: int) -> None:
    """Exchange what a table holds for two slots; either may have nothing."""
    held = {second: table.pop(first, None), first: table.pop(second, None)}
    table.update({slot: value for slot, value in held.items() if value is not None})
