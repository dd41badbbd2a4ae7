"""Drafter: what proposes tokens. It may be wrong as often as it likes: the target's text does not depend on it."""

from collections.abc import Sequence as Seq
from typing import Protocol

from decoding.rows import Rows
from decoding.sequence import Sequence
from decoding.verify import Draft


class Drafter(Protocol):
    """Proposes continuations of the running rows. Row b of a round stands in slot b."""

    def admit(self, slots: Seq[int], sequences: Seq[Sequence]) -> None:
        """Take in new sequences; whatever stood in those slots is gone."""
        ...

    def propose(self, rows: Rows) -> Draft:
        """At most rows.num_draft_tokens[b] tokens for row b; none is a fine answer."""
        ...

    def move(self, source: int, target: int) -> None:
        """Make slot `target` what slot `source` is; the sequence in `target` is gone."""
        ...

    def reset(self, slot: int) -> None:
        """Forget everything numeric about a slot: it has seen a value that is not finite."""
        ...
