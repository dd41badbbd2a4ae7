"""Drafter: what proposes tokens. It may be wrong as often as it likes: the target's text does not depend on it."""

from collections.abc import Sequence as Seq
from typing import Protocol

from decoding.rows import Rows
from decoding.sequence import Sequence
from decoding.verify import Draft


class Drafter(Protocol):
    """Proposes continuations of the running rows. Row b of a round stands in slot b."""

    def begin(self, slot: int, donor: int | None, num_shared: int) -> None:
        """A new prompt comes to `slot`; its first `num_shared` tokens stand in slot `donor` (maybe the same one)."""
        ...

    def prefill(self, slots: Seq[int], prompts: Seq[Seq[int]]) -> None:
        """So much of the prompts in these slots, from their beginnings, has been read by the target."""
        ...

    def admit(self, slots: Seq[int], sequences: Seq[Sequence]) -> None:
        """The prompts in these slots are complete: their sequences are in every round from here on."""
        ...

    def propose(self, rows: Rows) -> Draft:
        """At most rows.num_draft_tokens[b] tokens for row b; none is a fine answer."""
        ...

    def swap(self, first: int, second: int) -> None:
        """Two slots change places; either may have nobody in it, or a prompt that is not complete."""
        ...

    def reset(self, slot: int) -> None:
        """Forget everything numeric about a slot: it has seen a value that is not finite."""
        ...
