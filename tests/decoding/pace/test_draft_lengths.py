"""The lengths are the best of all lengths, by trying all of them."""

import itertools
import operator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.pace.cost_table import CostTable
from decoding.pace.draft_lengths import best_lengths

FLAT = CostTable(target=((1, 1.0), (1000, 1.0)), draft=((1, 0.05), (64, 0.05)))
LINE = CostTable(target=((1, 1.0), (101, 11.0)), draft=((1, 0.05), (64, 0.05)), position_seconds=0.02)
STAIRS = CostTable(((1, 1.0), (4, 1.2), (8, 3.0)), ((1, 0.3), (4, 0.4)), round_seconds=0.2, position_seconds=0.05)
COSTS = {
    "flat": FLAT,
    "line": LINE,
    "stairs": STAIRS,
    "cheap drafts": CostTable(((1, 1.0), (6, 1.1), (7, 1.9)), ((1, 0.01), (4, 0.06)), position_seconds=0.001),
    "elsewhere": replace(STAIRS, is_overlapped=True, trip_seconds=0.4, num_lanes=2),
    "target elsewhere": replace(STAIRS, chain=((1, 0.5), (8, 2.0)), num_lanes=2),
    "one forward": replace(STAIRS, block_tokens=4),
    "far away": replace(LINE, draft=((1, 0.5), (64, 2.0)), is_overlapped=True, trip_seconds=0.7, num_lanes=3),
}
RATES = st.sampled_from([0.2, 0.5, 0.8, 0.95, 1.0]) | st.floats(0.01, 1.0)
over_costs = pytest.mark.parametrize("costs", COSTS.values(), ids=COSTS)
few_examples = settings(max_examples=15, deadline=None, derandomize=True)


def survivals(num_rows: int, depth: int) -> st.SearchStrategy[np.ndarray]:
    """Return any lists that never rise, some of them short or empty, with ties."""
    rates = st.lists(st.lists(RATES, max_size=depth), min_size=num_rows, max_size=num_rows)
    falling = rates.map(lambda rows: [[*itertools.accumulate(row, operator.mul)] for row in rows])
    return falling.map(lambda rows: np.array([row + [0.0] * (depth - len(row)) for row in rows]))


def speed(costs: CostTable, by_model, by_lookup, lengths, uses_lookup) -> float:
    """Expected tokens a second, from the definition; the draft runs for the rows whose source it is."""
    num_rows = len(lengths)
    expected, steps = float(num_rows), 0
    steppers = sum(not up and (by_model[row][0] > 0) for row, up in enumerate(uses_lookup))
    for row, (length, up) in enumerate(zip(lengths, uses_lookup, strict=True)):
        survival = (by_lookup if up else by_model)[row][:length]
        assert length == 0 or survival[-1] > 0, "a row drafts what it cannot"
        expected += sum(survival)
        steps = steps if up else max(steps, length)
    seconds = costs.round_seconds + costs.target_seconds(num_rows + sum(lengths))
    seconds += costs.position_seconds * num_rows * (1 + max(lengths))
    forwards = min(steps, 1) if costs.block_tokens else steps
    drafting = forwards * costs.draft_seconds(steppers) if steps else 0.0
    (few, least), (many, most) = costs.chain[0], costs.chain[-1]
    on_the_way = least + (most - least) * (num_rows + sum(lengths) - few) / max(many - few, 1)
    on_the_way += costs.trip_seconds if steps else 0.0
    if costs.is_overlapped:
        return expected / max(seconds, drafting, (seconds + drafting + on_the_way) / costs.num_lanes)
    seconds += drafting + costs.position_seconds * steps * steppers
    return expected / max(seconds, (seconds + on_the_way) / costs.num_lanes)


def best_speed(costs: CostTable, by_model, by_lookup, uses_lookup) -> float:
    """The speed of the best of all lengths, where each row's source is known and a draft model must bring 3 %."""
    limits = (np.where(np.array(uses_lookup)[:, None], by_lookup, by_model) > 0).sum(1)
    speeds = {}
    for lengths in itertools.product(*(range(limit + 1) for limit in limits)):
        found = speed(costs, by_model, by_lookup, lengths, uses_lookup)
        has_steps = any(length and not up for length, up in zip(lengths, uses_lookup, strict=True))
        speeds[found / (1.03 if has_steps else 1.0)] = found
    return speeds[max(speeds)]


@over_costs
@few_examples
@given(data=st.data())
def test_the_lengths_are_the_best_of_all_lengths_whichever_source_a_row_has(costs, data):
    num_rows = data.draw(st.integers(1, 4))
    survival = data.draw(survivals(num_rows, 3 if num_rows == 4 else 4))
    some = st.lists(st.booleans(), min_size=num_rows, max_size=num_rows)
    uses_lookup = tuple(data.draw(st.just([False] * num_rows) | st.just([True] * num_rows) | some))
    by_lookup = np.where(np.array(uses_lookup)[:, None], survival, 0.0)
    by_model = survival - by_lookup
    sources = None if all(uses_lookup) else by_model, by_lookup if any(uses_lookup) else None
    plan = best_lengths(*sources, costs, num_rows)
    assert plan.speed == pytest.approx(best_speed(costs, by_model, by_lookup, uses_lookup))
    assert plan.speed == pytest.approx(speed(costs, by_model, by_lookup, plan.lengths, uses_lookup))
    assert all(plan.uses_lookup[row] == uses_lookup[row] for row in range(num_rows) if plan.lengths[row])


@over_costs
@few_examples
@given(by_model=survivals(3, 3), by_lookup=survivals(3, 3))
def test_a_choice_of_sources_is_never_worse_than_either_source_alone(costs, by_model, by_lookup):
    """And close to the best of all choices: a row's source is chosen by expected tokens, not by trying both."""
    plan = best_lengths(by_model, by_lookup, costs, 3)
    alone = [best_lengths(by_model, None, costs, 3).speed, best_lengths(None, by_lookup, costs, 3).speed]
    choices = itertools.product([False, True], repeat=3)
    best = max(best_speed(costs, by_model, by_lookup, uses_lookup) for uses_lookup in choices)
    assert plan.speed >= alone[1] * (1 - 1e-9)
    assert plan.speed >= 0.9 * max(best, alone[0])


def test_drafts_that_verification_hides_are_as_long_as_they_can_be():
    survival = np.array([[0.9, 0.3, 0.01]])
    here = CostTable(FLAT.target, ((1, 0.3), (64, 0.3)))
    assert best_lengths(survival, None, here, 1).lengths == (1,)
    there = replace(here, is_overlapped=True, num_lanes=2)
    assert best_lengths(survival, None, there, 1).lengths == (3,)
    assert best_lengths(survival, None, replace(there, trip_seconds=0.3), 1).lengths == (2,)
    assert best_lengths(survival, None, replace(there, trip_seconds=5.0), 1).lengths == (0,)
    assert best_lengths(survival, None, replace(there, trip_seconds=5.0, num_lanes=8), 1).lengths == (3,)


def test_no_row_drafts_more_of_a_model_than_its_block_holds():
    certain = np.full((2, 4), 0.99)
    costs = replace(FLAT, block_tokens=2)
    assert best_lengths(certain, None, FLAT, 2).lengths == (4, 4)
    assert best_lengths(certain, None, costs, 2).lengths == (2, 2)
    assert best_lengths(None, certain, costs, 2).lengths == (4, 4)
    assert best_lengths(0.9 * certain, certain, costs, 2).lengths == (4, 4)


def test_the_later_tokens_of_a_block_cost_no_draft_forward():
    dear = replace(FLAT, draft=((1, 0.4), (64, 0.4)))
    fading = np.array([[0.6, 0.36, 0.22]])
    assert best_lengths(fading, None, dear, 1).lengths == (1,)
    assert best_lengths(fading, None, replace(dear, block_tokens=3), 1).lengths == (3,)
