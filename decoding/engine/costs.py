"""The cost table, measured on the models, the device and the dtype that will run.

A forward's time is no formula: on CPU it jumps where a kernel changes, on GPU it is flat until compute binds. A few
forwards at start-up say more than any of them.
"""

from decoding.network.target import Timed
from decoding.pace.cost_table import CostTable

_REPEATS = 4
_DRAFT_STEPS = 3  # in a row: the target has just pushed the draft's weights out of the caches


def measure_costs(target: Timed, draft: Timed | None, num_slots: int, num_draft_tokens: int) -> CostTable:
    """Seconds of the target by tokens in a forward and of the draft by rows; both models have their caches allocated.

    Without a draft model drafting is taken to cost nothing. What stands in the caches is overwritten. Each time is the
    least of a few, taken in turns: other work on the machine only ever adds, and comes and goes.
    """
    rows = row_counts(num_slots)
    shapes = [(num_rows, 1) for num_rows in rows]
    shapes += [(num_slots, 1 + drafted) for drafted in range(1, num_draft_tokens + 1) if drafted & (drafted - 1) == 0]
    if num_slots > 1:
        shapes.append((1, 1 + num_draft_tokens))
    target_seconds, draft_seconds = dict.fromkeys(shapes, float("inf")), dict.fromkeys(rows, float("inf"))
    for _ in range(1 + _REPEATS):  # the first time warms up, and is hardly ever the least
        for shape in shapes:
            target_seconds[shape] = min(target_seconds[shape], target.seconds(*shape))
        for num_rows in rows:
            steps = _draft_seconds(target, draft, num_rows) if draft else 0.0
            draft_seconds[num_rows] = min(draft_seconds[num_rows], steps)
    return CostTable(
        ascending([(num_rows * num_tokens, seconds) for (num_rows, num_tokens), seconds in target_seconds.items()]),
        ascending(list(draft_seconds.items())),
    )


def row_counts(num_slots: int) -> list[int]:
    """The numbers of rows to time: powers of two, and all slots."""
    return sorted({min(2**power, num_slots) for power in range(num_slots.bit_length() + 1)})


def _draft_seconds(target: Timed, draft: Timed, num_rows: int) -> float:
    """Of one of a few draft steps, as they come in a round: behind a forward of the target."""
    target.seconds(1, 1)
    return sum(draft.seconds(num_rows, 1) for _ in range(_DRAFT_STEPS)) / _DRAFT_STEPS


def ascending(table: list[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """Sorted by size, one entry each, times never falling: more work is never cheaper, whatever the clock saw."""
    slowest: dict[int, float] = {}
    longest = 0.0
    for size, seconds in sorted(table):
        longest = max(longest, seconds)
        slowest[size] = longest
    return tuple(slowest.items())
