"""How many tokens rows draft: never more than they can keep, and as many as pay."""

import numpy as np
import pytest

from decoding import Engine, EngineOptions, SamplingParams, Sequence
from decoding.pace.cost_table import CostTable
from decoding.pace.draft_lengths import DraftPlan, best_lengths
from decoding.pace.schedule import AdaptiveSchedule, FixedSchedule

FLAT = CostTable(target=((1, 1.0), (1000, 1.0)), draft=((1, 0.05), (64, 0.05)))  # a forward costs the same for any size
STEEP = CostTable(target=((1, 1.0), (1000, 1000.0)), draft=((1, 0.05), (64, 0.05)))  # every token costs a token
DEAR_DRAFTS = CostTable(target=((1, 1.0), (1000, 1.5)), draft=((1, 0.3), (64, 0.3)))


def rows(*num_left: int) -> list[Sequence]:
    return [Sequence.create([1], SamplingParams(max_tokens=n)) for n in num_left]


def lengths(schedule, sequences, lookup_survival=None, has_model=True) -> tuple[int, ...]:
    return schedule.plan(sequences, lookup_survival, has_model).lengths


def observe(schedule, sequences, num_drafted, num_accepted, uses_lookup=None, seconds=0.0):
    """As after a round that was planned like this."""
    schedule._plan = DraftPlan(tuple(num_drafted), tuple(uses_lookup or [False] * len(sequences)))
    schedule.observe(sequences, num_drafted, num_accepted, seconds)


@pytest.mark.parametrize(("num_left", "expected"), [(1, 0), (2, 1), (4, 3), (5, 4), (6, 4), (100, 4)])
@pytest.mark.parametrize("schedule", [FixedSchedule(4), AdaptiveSchedule(FLAT, 4)], ids=["fixed", "adaptive"])
def test_a_row_never_drafts_more_than_its_limit_lets_it_keep(schedule, num_left, expected):
    sequence = Sequence.create([1, 2], SamplingParams(max_tokens=num_left + 3))
    sequence.output_token_ids += [5, 6, 7]
    for lookup_survival in (None, [[0.99] * expected]):
        (length,) = lengths(schedule, [sequence], lookup_survival)
        assert length == expected if isinstance(schedule, FixedSchedule) else length <= expected


def test_every_row_gets_a_length_of_its_own():
    assert lengths(FixedSchedule(6), rows(1, 3, 50)) == (0, 2, 6)


def test_nothing_is_drafted_where_every_token_costs_its_full_price():
    assert lengths(AdaptiveSchedule(STEEP, 8), rows(50, 50, 50), [[0.95] * 8] * 3) == (0, 0, 0)


def test_a_row_that_accepted_more_drafts_more():
    schedule = AdaptiveSchedule(CostTable(((1, 1.0), (101, 11.0)), ((1, 0.05), (64, 0.05))), 8)
    batch = rows(500, 500)
    for _ in range(30):
        observe(schedule, batch, [4, 4], [4, 1])
    more, less = lengths(schedule, batch)
    assert more > less


def test_drafts_end_at_the_depth_where_they_have_always_fallen():
    """The same acceptance, at the first two positions or spread over all."""
    schedule = AdaptiveSchedule(CostTable(((1, 1.0), (101, 6.0)), ((1, 0.02), (64, 0.02))), 8)
    batch = rows(500)
    for _ in range(100):
        observe(schedule, batch, [8], [2])
    assert lengths(schedule, batch) == (2,)


def test_a_schedule_learns_that_drafts_fall_and_stops_then_looks_again_now_and_then():
    schedule = AdaptiveSchedule(DEAR_DRAFTS, 8)
    batch = rows(500)
    assert lengths(schedule, batch)[0] > 0
    for _ in range(50):
        observe(schedule, batch, [4], [0])
    found = [lengths(schedule, batch)[0] for _ in range(200)]
    assert set(found) == {0, 1}
    assert found.count(1) == 3


def test_a_schedule_that_found_nothing_to_gain_thinks_again_only_some_rounds_later_or_with_fewer_rows(monkeypatch):
    planned = []
    monkeypatch.setattr(
        "decoding.pace.schedule.best_lengths", lambda *args: planned.append(args[3]) or best_lengths(*args)
    )
    schedule = AdaptiveSchedule(STEEP, 8)
    assert not schedule.would_draft(2)
    planned.clear()
    for _ in range(16):
        assert lengths(schedule, rows(500, 500)) == (0, 0)
    assert planned == [2, 2]
    lengths(schedule, rows(500))
    assert planned == [2, 2, 1]


def test_only_the_shortest_rows_probe_a_draft_model_that_did_not_pay():
    """The others have missed more, all of which the draft would have to read first."""
    schedule = AdaptiveSchedule(DEAR_DRAFTS, 8)
    batch = [Sequence.create([1] * length, SamplingParams(max_tokens=500)) for length in (30, 4, 20, 5) * 4]
    for _ in range(50):
        observe(schedule, batch, [4] * 16, [0] * 16)
    (probe,) = {plan for plan in (lengths(schedule, batch) for _ in range(64)) if any(plan)}
    assert [row for row, length in enumerate(probe) if length] == [1, 5]


def test_a_lookup_that_pays_does_not_keep_the_draft_model_from_being_probed():
    schedule = AdaptiveSchedule(DEAR_DRAFTS, 8)
    batch = rows(500, 500)
    for _ in range(50):
        observe(schedule, batch, [4, 4], [0, 0])
    plans = [schedule.plan(batch, [[0.9, 0.8], [0.9]], has_model=True) for _ in range(64)]
    assert {plan.uses_lookup for plan in plans[:63]} == {(True, True)}
    assert plans[63].uses_lookup == (False, True)


@pytest.mark.parametrize("make", [FixedSchedule, lambda most: AdaptiveSchedule(FLAT, most)], ids=["fixed", "adaptive"])
def test_a_row_takes_the_source_with_more_expected_tokens(make):
    schedule = make(4)
    batch = rows(500, 500, 500)
    for _ in range(40):
        observe(schedule, batch, [4, 4, 0], [2, 2, 0])
    plan = schedule.plan(batch, [[0.95, 0.9, 0.85, 0.8], [0.2], []], has_model=True)
    assert plan.uses_lookup == (True, False, False)
    assert plan.lengths[0] == 4


def test_what_a_lookup_accepted_says_nothing_of_the_draft_model():
    schedule = AdaptiveSchedule(DEAR_DRAFTS, 8)
    batch = rows(500, 500)
    before = lengths(schedule, batch)
    for _ in range(50):
        observe(schedule, batch, [4, 4], [0, 0], uses_lookup=[True, True])
    assert lengths(schedule, batch) == before


def test_without_a_draft_model_only_what_was_looked_up_is_drafted():
    plan = AdaptiveSchedule(FLAT, 8).plan(rows(50, 50), [[0.9, 0.5], []], has_model=False)
    assert plan.lengths == (2, 0)
    assert lengths(AdaptiveSchedule(FLAT, 8), rows(50, 50), None, has_model=False) == (0, 0)


def test_the_engines_own_time_decides_too_and_is_corrected_by_what_rounds_take():
    """A width of verification that costs as much as a forward is not worth a poor draft; a cheap one is."""
    costs = CostTable(((1, 1.0), (9, 1.0)), ((1, 0.0), (64, 0.0)), round_seconds=0.1, position_seconds=0.1)
    schedule = AdaptiveSchedule(costs, 8)
    batch, lookup_survival = rows(500), [[0.15, 0.02]]
    assert lengths(schedule, batch, lookup_survival, has_model=False) == (1,)
    for num_drafted in (0, 1) * 60:
        seconds = 1.0 + 0.1 + 0.5 * (1 + num_drafted)
        observe(schedule, batch, [num_drafted], [0], uses_lookup=[True], seconds=seconds)
    assert lengths(schedule, batch, lookup_survival, has_model=False) == (0,)


def test_dear_plain_rounds_do_not_make_drafts_look_dear_that_nobody_tried():
    costs = CostTable(((1, 1.0), (36, 1.0)), FLAT.draft, round_seconds=0.0, position_seconds=0.02)
    schedule = AdaptiveSchedule(costs, 8)
    batch = rows(500, 500, 500, 500)
    before = lengths(schedule, batch)
    for _ in range(300):  # a round takes more than was measured, whatever is drafted
        observe(schedule, batch, [0] * 4, [0] * 4, seconds=1.0 + 3 * 4 * 0.02)
    assert min(lengths(schedule, batch)) >= min(before) > 0


def test_what_a_row_drafts_depends_on_what_it_accepted_not_on_what_was_rejected():
    """A policy that looks at rejected guesses would bias the law under rejection."""
    plans = []
    for rejected in (1, 5):
        schedule = AdaptiveSchedule(CostTable(((1, 1.0), (101, 11.0)), ((1, 0.05), (64, 0.05))), 8)
        batch = rows(100, 100)
        for _ in range(20):
            observe(schedule, batch, [2 + rejected, 3], [2, 3])
        plans.append(schedule.plan(batch, None, has_model=True))
    assert plans[0] == plans[1]


def test_sequences_that_are_gone_are_forgotten():
    schedule = AdaptiveSchedule(FLAT, 4)
    for _ in range(100):
        batch = rows(50, 50)  # never seen to finish: the engine was cleared
        observe(schedule, batch, [4, 4], [2, 2])
    assert len(schedule._acceptance._of_row) <= 4


def test_an_adaptive_engine_measures_itself_and_leaves_no_trace_in_its_caches(folders):
    params = SamplingParams(max_tokens=30, ignore_eos=True)
    plain = Engine.load(folders.target, options=EngineOptions(num_slots=3))
    adaptive = Engine.load(folders.target, folders.good_draft, EngineOptions(num_slots=3))
    assert isinstance(adaptive.lanes[0].schedule, AdaptiveSchedule)
    prompts = [[5, 6, 7], [8], [9, 10], [11, 12, 13, 14]]
    texts = [[s.output_token_ids for s in engine.generate(prompts, params)] for engine in (plain, adaptive)]
    assert texts[0] == texts[1]


KNEE = CostTable(target=((1, 1.0), (32, 1.1), (64, 2.0), (256, 8.0)), draft=((1, 0.1), (16, 0.12), (64, 0.2)))


@pytest.mark.parametrize("costs", [FLAT, STEEP, KNEE, CostTable(((1, 1.0), (101, 11.0)), ((1, 0.05), (64, 0.05)))])
@pytest.mark.parametrize("rate", [0.3, 0.6, 0.8, 0.95])
def test_draft_lengths_never_fall_as_the_batch_drains(costs, rate):
    """The last rows of a job draft the most: a forward over few rows has room for more tokens of each."""
    survival_K = rate ** np.arange(1, 9)
    longest = [
        max(best_lengths(np.tile(survival_K, (num_rows, 1)), None, costs, num_rows).lengths)
        for num_rows in (64, 48, 32, 16, 8, 4, 2, 1)
    ]
    assert longest == sorted(longest)
    if costs is KNEE and rate > 0.5:
        assert longest[-1] > longest[0]
