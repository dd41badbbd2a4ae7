"""best_num_lanes: how many lanes it takes to hide what their rounds wait for; and whether the rows suffice for it."""

import math
from collections.abc import Sequence as Seq
from dataclasses import replace

from decoding.pace.acceptance import Acceptance
from decoding.pace.cost_table import CostTable

_FAR_S = 5e-3  # on the way: a shorter delay is that of processes of one host
_ENOUGH = 1.1  # times the rows that there are
_GOOD_ENOUGH = 0.97  # of the best speed: each lane more has smaller batches, and shares fewer prefixes


def best_num_lanes(costs: CostTable, num_slots: int, lengths: Seq[int], least: int, most: int) -> int:
    """Return the fewest lanes, from `least` to `most`, with which `num_slots` rows are about as fast as they can be.

    Each row drafts one of these `lengths` in a round, the best one for the number of lanes. What a lane waits for is
    hidden behind the rounds of the others, and rounds of fewer rows take longer for each row.
    """
    survival_K = Acceptance(max(1, *lengths)).survival_BK([None])[0]

    def speed(num_lanes: int) -> float:
        among, num_rows = replace(costs, num_lanes=num_lanes), -(-num_slots // num_lanes)
        tokens_a_second = [(1 + survival_K[:n].sum()) / among.of_round(num_rows, n) for n in lengths]
        return num_slots / num_lanes * float(max(tokens_a_second))

    speeds = {num_lanes: speed(num_lanes) for num_lanes in range(least, 1 + max(least, min(most, num_slots)))}
    best = max(speeds.values())
    return next(num_lanes for num_lanes, reached in speeds.items() if reached >= _GOOD_ENOUGH * best)


def why_delayed(costs: CostTable, num_slots: int, num_drafted: int) -> str | None:
    """Return in words that rows wait for other hosts in rounds of such drafts, and how many would not; else None."""
    num_rows = -(-num_slots // costs.num_lanes)
    whole, busy = (replace(costs, num_lanes=n).of_round(num_rows, num_drafted) for n in (1, 10**9))
    needed = math.ceil(num_slots * whole / (costs.num_lanes * busy))
    if whole - busy < _FAR_S or needed <= _ENOUGH * num_slots:
        return None
    return (
        f"a round waits {1e3 * (whole - busy):.0f} ms for other hosts, in which {num_slots} rows at once are "
        f"{1e3 * costs.num_lanes * busy:.0f} ms of work; about {needed} (engine.num_slots) would hide the delay"
    )
