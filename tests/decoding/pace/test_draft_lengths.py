"""The lengths are the best of all lengths, by trying all of them."""

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest

from decoding.pace.cost_table import CostTable
from decoding.pace.draft_lengths import DraftPlan, best_lengths

FLAT = CostTable(target=((1, 1.0), (1000, 1.0)), draft=((1, 0.05), (64, 0.05)))
LINE = CostTable(target=((1, 1.0), (101, 11.0)), draft=((1, 0.05), (64, 0.05)), position_seconds=0.02)
STAIRS = CostTable(((1, 1.0), (4, 1.2), (8, 3.0)), ((1, 0.3), (4, 0.4)), round_seconds=0.2, position_seconds=0.05)
COSTS = {
    "flat": FLAT,
    "line": LINE,
    "stairs": STAIRS,
    "cheap drafts": CostTable(((1, 1.0), (6, 1.1), (7, 1.9)), ((1, 0.01), (4, 0.06)), position_seconds=0.001),
    "elsewhere": replace(STAIRS, is_overlapped=True, trip_seconds=0.4),
    "one forward": replace(STAIRS, block_tokens=4),
    "far away": replace(LINE, draft=((1, 0.5), (64, 2.0)), is_overlapped=True, trip_seconds=0.7),
}


def survivals(seed: int, num_rows: int, depth: int) -> np.ndarray:
    """Any lists that never rise, some of them short or empty, with ties."""
    chance = random.Random(seed)
    lists = []
    for _ in range(num_rows):
        rates = [chance.choice([0.2, 0.5, 0.8, 0.95, 1.0, chance.random()]) for _ in range(depth)]
        length = chance.choice([0, depth, depth, chance.randint(0, depth)])
        lists.append([x if j < length else 0.0 for j, x in enumerate(itertools.accumulate(rates, lambda a, b: a * b))])
    return np.array(lists)


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
    drafting = forwards * costs.draft_seconds(steppers) + costs.trip_seconds if steps else 0.0
    if costs.is_overlapped:
        return expected / max(seconds, drafting)
    return expected / (seconds + drafting + costs.position_seconds * steps * steppers)


def all_lengths(*survival: np.ndarray):
    limits = np.maximum.reduce([(s > 0).sum(1) for s in survival])
    return itertools.product(*(range(limit + 1) for limit in limits))


@pytest.mark.parametrize("name", COSTS)
@pytest.mark.parametrize("seed", range(40))
def test_the_lengths_are_the_best_of_all_lengths(name, seed):
    costs, num_rows = COSTS[name], 1 + seed % 4
    survival = survivals(seed, num_rows, 3 if num_rows == 4 else 4)
    nothing = np.zeros_like(survival)
    for by_model, by_lookup in ((survival, None), (None, survival)):
        plan = best_lengths(by_model, by_lookup, costs, num_rows)
        uses_lookup = (by_model is None,) * num_rows
        tables = (nothing if by_model is None else by_model, nothing if by_lookup is None else by_lookup)
        found = speed(costs, *tables, plan.lengths, uses_lookup)
        best = max(speed(costs, *tables, lengths, uses_lookup) for lengths in all_lengths(survival))
        assert found == pytest.approx(best)
        assert plan.speed == pytest.approx(found)


@pytest.mark.parametrize("name", COSTS)
@pytest.mark.parametrize("seed", range(30))
def test_the_lengths_are_the_best_where_each_row_has_a_source_of_its_own(name, seed):
    costs = COSTS[name]
    survival = survivals(seed, 3, 3)
    uses_lookup = tuple(random.Random(seed).random() < 0.5 for _ in range(3))
    by_lookup = np.where(np.array(uses_lookup)[:, None], survival, 0.0)
    by_model = survival - by_lookup
    plan = best_lengths(by_model, by_lookup, costs, 3)
    best = max(speed(costs, by_model, by_lookup, lengths, uses_lookup) for lengths in all_lengths(survival))
    assert plan.speed == pytest.approx(best)
    assert all(plan.uses_lookup[row] == uses_lookup[row] for row in range(3) if plan.lengths[row])


@pytest.mark.parametrize("name", COSTS)
@pytest.mark.parametrize("seed", range(30))
def test_a_choice_of_sources_is_never_worse_than_either_source_alone(name, seed):
    """And close to the best of all choices: a row's source is chosen by expected tokens, not by trying both."""
    costs = COSTS[name]
    by_model, by_lookup = survivals(seed, 3, 3), survivals(1000 + seed, 3, 3)
    plan = best_lengths(by_model, by_lookup, costs, 3)
    alone = [best_lengths(by_model, None, costs, 3).speed, best_lengths(None, by_lookup, costs, 3).speed]
    best = 0.0
    for uses_lookup in itertools.product([False, True], repeat=3):
        chosen = np.where(np.array(uses_lookup)[:, None], by_lookup, by_model)
        for lengths in all_lengths(chosen):
            best = max(best, speed(costs, by_model, by_lookup, lengths, uses_lookup))
    assert plan.speed >= alone[1] * (1 - 1e-9)
    assert plan.speed >= 0.9 * max(best, alone[0])


def test_nothing_is_drafted_where_nothing_may_be():
    plan = best_lengths(np.zeros((2, 4)), np.zeros((2, 4)), FLAT, 2)
    assert plan == DraftPlan((0, 0), (False, False), 2.0)


def test_drafts_that_verification_hides_are_as_long_as_they_can_be():
    survival = np.array([[0.9, 0.3, 0.01]])
    here = CostTable(FLAT.target, ((1, 0.3), (64, 0.3)))
    assert best_lengths(survival, None, here, 1).lengths == (1,)
    assert best_lengths(survival, None, replace(here, is_overlapped=True), 1).lengths == (3,)
    assert best_lengths(survival, None, replace(here, is_overlapped=True, trip_seconds=0.3), 1).lengths == (2,)
    assert best_lengths(survival, None, replace(here, is_overlapped=True, trip_seconds=2.0), 1).lengths == (0,)


def test_a_lookup_costs_no_draft_steps():
    survival = np.array([[0.5, 0.25]])
    dear = CostTable(FLAT.target, ((1, 10.0), (64, 10.0)))
    assert best_lengths(survival, None, dear, 1).lengths == (0,)
    assert best_lengths(None, survival, dear, 1).lengths == (2,)


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
