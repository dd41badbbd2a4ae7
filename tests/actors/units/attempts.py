"""Attempts at units whose rows may kill the process: only the deaths are simulated."""

from itertools import count

from actors.units.ledger import Ledger
from actors.units.unit_record import Attempt


class Died(Exception):
    """The process died over rows that ran together."""

    def __init__(self, rows: tuple[int, ...]) -> None:
        self.rows = rows


def run(
    ledger: Ledger, attempt: Attempt, unit_id: int, num_rows: int, killers: set[int], call: str = ""
) -> set[int] | None:
    """Run the rows as a worker does; return the condemned ones, or None if the unit was committed meanwhile."""
    rows, condemned = set(range(num_rows)), set[int]()
    if attempt.is_careful:
        numbers = count()
        while (group := ledger.next_group(unit_id, call, next(numbers))) is not None and group.rows:
            if killers.intersection(group.rows):
                raise Died(group.rows)
            rows -= set(group.rows)
        if group is None:
            return None
        condemned = set(group.condemned)
    rest = rows - condemned
    if killers & rest:
        raise Died(tuple(sorted(rest)))
    return condemned
