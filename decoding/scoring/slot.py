"""Slot: what the scorer knows of one of its slots, and which slot has the beginning of a branch."""

from collections.abc import Collection
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import NamedTuple

from decoding.scoring.branch import Branch


@dataclass(eq=False)
class Slot:
    """What a slot holds: the first `num_held` tokens of its source."""

    source: Branch | None = None  # which may be done
    num_held: int = 0
    num_finite: int = 0  # how many of them are known to be finite
    branch: Branch | None = None  # that reads here now
    since: int = 0  # the number of that branch, of all that have begun


class Shared(NamedTuple):
    """The first tokens of a branch that slots have, or will have."""

    donor: Slot | None  # has most of them
    num_shared: int  # tokens that it has
    leader: Slot | None  # where another branch reads most of them
    num_soon: int  # tokens that it will have


def find_shared(branch: Branch, slots: Seq[Slot], free: Collection[Slot]) -> Shared:
    """Return what slots have of a branch: a free one as donor if several will do."""
    donor, num_shared, leader, num_soon = None, 0, None, 0
    for slot in slots:
        if slot.source is None:
            continue
        shareable = branch.num_shareable(slot.source)
        held = min(shareable, slot.num_held)
        if slot.branch is not None and shareable > num_soon:
            leader, num_soon = slot, shareable
        if held > num_shared or (held == num_shared > 0 and slot in free and donor not in free):
            donor, num_shared = slot, held
    return Shared(donor, num_shared, leader, num_soon)
