"""How many tokens rows draft: never more than they can keep, and as many as pay."""

import gc
import random
import weakref
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from decoding import SamplingParams, Sequence
from decoding.pace.acceptance import Acceptance
from decoding.pace.adaptive_schedule import AdaptiveSchedule
from decoding.pace.cost_table import CostTable
from decoding.pace.draft_lengths import DraftPlan, best_lengths
from decoding.pace.schedule import FixedSchedule, Schedule
from decoding.pace.trials import Trials

FLAT = CostTable(target=((1, 1.0), (1000, 1.0)), draft=((1, 0.05), (64, 0.05)))  # a forward costs the same for any size
LINE = CostTable(target=((1, 1.0), (101, 11.0)), draft=((1, 0.05), (64, 0.05)))
STEEP = CostTable(target=((1, 1.0), (1000, 1000.0)), draft=((1, 0.05), (64, 0.05)))  # every token costs a token
DEAR_DRAFTS = CostTable(target=((1, 1.0), (1000, 1.5)), draft=((1, 0.3), (64, 0.3)))
KNEE = CostTable(target=((1, 1.0), (32, 1.1), (64, 2.0), (256, 8.0)), draft=((1, 0.1), (16, 0.12), (64, 0.2)))
Accepts = Callable[[int, int], int]  # a row and the length of its draft -> how many tokens of it are accepted


def rows(*num_left: int) -> list[Sequence]:
    return [Sequence.create([1], SamplingParams(max_tokens=n)) for n in num_left]


def lengths(schedule, sequences, lookup_survival=None, has_model=True) -> tuple[int, ...]:
    return schedule.plan(sequences, lookup_survival, has_model).lengths


def play(schedule: Schedule, sequences, accepts: Accepts, num_rounds: int, lookup_survival=None) -> list:
    """Play rounds in which rows accept what `accepts` says; return the plans. Rounds take what the costs say."""
    plans = []
    for _ in range(num_rounds):
        plan = schedule.plan(sequences, lookup_survival, has_model=True)
        accepted = [accepts(row, length) for row, length in enumerate(plan.lengths)]
        schedule.observe(plan, sequences, plan.lengths, accepted, seconds(schedule.costs or FLAT, plan))
        plans.append(plan)
    return plans


def seconds(costs: CostTable, plan: DraftPlan) -> float:
    by_model = [0 if up else length for length, up in zip(plan.lengths, plan.uses_lookup, strict=True)]
    drafting = costs.drafting_seconds(max(by_model), sum(length > 0 for length in by_model))
    return costs.target_seconds(len(plan.lengths) + sum(plan.lengths)) + drafting


def all_rejected(row: int, length: int) -> int:
    return 0


@pytest.mark.parametrize("num_left", [1, 2, 4, 5, 6, 100])
@pytest.mark.parametrize("make", [FixedSchedule, lambda ceiling: AdaptiveSchedule(FLAT, ceiling)])
def test_a_row_never_drafts_more_than_its_limit_lets_it_keep(make, num_left):
    sequence = Sequence.create([1, 2], SamplingParams(max_tokens=num_left + 3))
    sequence.output_token_ids += [5, 6, 7]
    limit = min(4, num_left - 1)  # a round adds one token to what it accepts
    for lookup_survival in (None, [[0.99] * limit]):
        (length,) = lengths(make(4), [sequence], lookup_survival)
        assert length == limit


@pytest.mark.parametrize("beside", [0.0, 0.4])  # what a round with drafts takes beside what was measured
@pytest.mark.parametrize(("costs", "rate"), [(FLAT, 0.1), (LINE, 0.6), (DEAR_DRAFTS, 0.9), (KNEE, 0.6), (KNEE, 0.9)])
def test_an_adaptive_schedule_is_about_as_fast_as_the_best_fixed_length(costs, rate, beside):
    def speed(schedule: Schedule) -> float:
        chance, batch = random.Random(4), rows(*[5000] * 4)

        def accepts(row: int, length: int) -> int:
            return next((n for n in range(length) if chance.random() > rate), length)

        tokens, time = 0, 0.0
        for _ in range(300):
            plan = schedule.plan(batch, None, has_model=True)
            accepted = [accepts(row, length) for row, length in enumerate(plan.lengths)]
            took = seconds(costs, plan) + beside * any(plan.lengths)
            schedule.observe(plan, batch, plan.lengths, accepted, took)
            tokens, time = tokens + sum(accepted) + len(batch), time + took
        return tokens / time

    best = max(speed(FixedSchedule(length)) for length in range(9))
    assert speed(AdaptiveSchedule(costs, 8)) > 0.93 * best


def test_nothing_is_drafted_where_every_token_costs_its_full_price():
    assert lengths(AdaptiveSchedule(STEEP, 8), rows(50, 50, 50), [[0.95] * 8] * 3) == (0, 0, 0)


def test_a_row_that_accepted_more_drafts_more():
    schedule, batch = AdaptiveSchedule(LINE, 8), rows(500, 500)
    play(schedule, batch, lambda row, length: length if row == 0 else min(length, 1), 60)
    more, less = lengths(schedule, batch)
    assert more > less


@pytest.mark.parametrize("make", [FixedSchedule, lambda ceiling: AdaptiveSchedule(FLAT, ceiling)])
def test_a_row_takes_the_source_with_more_expected_tokens(make):
    schedule, batch = make(4), rows(500, 500, 500)
    play(schedule, batch, lambda row, length: min(length, 2), 40)
    plan = schedule.plan(batch, [[0.95, 0.9, 0.85, 0.8], [0.2], []], has_model=True)
    assert plan.uses_lookup == (True, False, False)
    assert plan.lengths[0] == 4


def test_rejected_lookups_do_not_change_what_the_draft_model_drafts():
    schedule, batch = AdaptiveSchedule(DEAR_DRAFTS, 8), rows(500, 500)
    before = lengths(schedule, batch)
    plans = play(schedule, batch, all_rejected, 50, [[0.99] * 8] * 2)
    assert all(all(plan.uses_lookup) for plan in plans)
    assert lengths(schedule, batch) == before


def test_without_a_draft_model_only_what_was_looked_up_is_drafted():
    plan = AdaptiveSchedule(FLAT, 8).plan(rows(50, 50), [[0.9, 0.5], []], has_model=False)
    assert plan.lengths == (2, 0)
    assert lengths(AdaptiveSchedule(FLAT, 8), rows(50, 50), None, has_model=False) == (0, 0)


@pytest.mark.parametrize("costs", [FLAT, STEEP, KNEE, LINE])
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


def test_drafts_end_near_the_depth_at_which_they_have_always_been_rejected():
    schedule, batch = AdaptiveSchedule(CostTable(((1, 1.0), (101, 6.0)), ((1, 0.02), (64, 0.02))), 8), rows(500)
    play(schedule, batch, lambda row, length: min(length, 2), 100)
    (length,) = lengths(schedule, batch)
    assert 1 <= length <= 3


def test_a_schedule_stops_after_rejected_drafts_and_probes_now_and_then():
    schedule, batch = AdaptiveSchedule(DEAR_DRAFTS, 8), rows(500)
    assert lengths(schedule, batch)[0] > 0
    play(schedule, batch, all_rejected, 100)
    found = [plan.lengths[0] for plan in play(schedule, batch, all_rejected, 200)]
    assert set(found) == {0, 1}
    assert 1 <= found.count(1) <= 10


def test_a_schedule_that_forgets_its_draft_plans_as_a_new_one_does():
    schedule, sequences = AdaptiveSchedule(KNEE, 8), rows(500, 500, 500)
    play(schedule, sequences, all_rejected, 300)
    assert not any(lengths(schedule, sequences))
    schedule.forget()
    assert not schedule.rests
    assert lengths(schedule, sequences) == lengths(AdaptiveSchedule(KNEE, 8), sequences) != (0, 0, 0)


def test_a_schedule_that_found_nothing_to_gain_plans_again_only_some_rounds_later_or_with_fewer_rows(monkeypatch):
    planned = []
    monkeypatch.setattr(
        "decoding.pace.adaptive_schedule.best_lengths", lambda *args: planned.append(args[3]) or best_lengths(*args)
    )
    schedule = AdaptiveSchedule(STEEP, 8)
    assert not schedule.would_draft(2)
    planned.clear()
    for _ in range(16):
        assert lengths(schedule, rows(500, 500)) == (0, 0)
    assert 1 <= len(planned) <= 4
    before = len(planned)
    lengths(schedule, rows(500))
    assert len(planned) == before + 1


def test_only_the_shortest_rows_probe_a_draft_model_that_did_not_pay():
    """The draft model has missed more tokens of the others, all of which it would have to read first."""
    schedule = AdaptiveSchedule(DEAR_DRAFTS, 8)
    batch = [Sequence.create([1] * length, SamplingParams(max_tokens=500)) for length in (30, 4, 20, 5) * 4]
    play(schedule, batch, all_rejected, 100)
    (probe,) = {plan.lengths for plan in play(schedule, batch, all_rejected, 64) if any(plan.lengths)}
    probing = [len(batch[row]) for row, length in enumerate(probe) if length]
    assert 1 <= len(probing) <= 4
    assert set(probing) == {4}


def test_a_lookup_that_pays_does_not_keep_the_draft_model_from_being_probed():
    schedule, batch = AdaptiveSchedule(DEAR_DRAFTS, 8), rows(500, 500)
    play(schedule, batch, all_rejected, 100)
    offered = [[0.9, 0.8], [0.9]]
    plans = play(schedule, batch, lambda row, length: length, 130, offered)
    num_probes = sum(plan.uses_lookup != (True, True) for plan in plans)
    assert 1 <= num_probes <= 4


def test_measured_overhead_decides_whether_a_poor_draft_pays():
    """A position of verification that costs half a forward is not worth a poor draft; a cheap one is."""
    costs = CostTable(((1, 1.0), (9, 1.0)), ((1, 0.0), (64, 0.0)), round_seconds=0.1, position_seconds=0.1)
    schedule, batch, offered = AdaptiveSchedule(costs, 8), rows(500), [[0.15, 0.02]]
    assert lengths(schedule, batch, offered, has_model=False)[0] > 0
    for lookup_survival in ([[]], offered) * 60:
        plan = schedule.plan(batch, lookup_survival, has_model=False)
        (drafted,) = plan.lengths
        schedule.observe(plan, batch, [drafted], [0], seconds=1.0 + 0.1 + 0.5 * (1 + drafted))
    assert lengths(schedule, batch, offered, has_model=False) == (0,)


def test_slow_plain_rounds_do_not_make_drafts_look_expensive_that_were_never_tried():
    costs = CostTable(((1, 1.0), (36, 1.0)), FLAT.draft, round_seconds=0.0, position_seconds=0.02)
    schedule, batch = AdaptiveSchedule(costs, 8), rows(500, 500, 500, 500)
    before = lengths(schedule, batch)
    for _ in range(300):  # no draft can be made, and a round takes more than was measured
        plan = schedule.plan(batch, None, has_model=False)
        assert plan.lengths == (0, 0, 0, 0)
        schedule.observe(plan, batch, [0] * 4, [0] * 4, seconds=1.0 + 3 * 4 * 0.02)
    assert min(lengths(schedule, batch)) >= min(before) > 0


def test_estimates_depend_on_what_was_accepted_not_on_what_was_rejected():
    """A policy that depends on rejected tokens would bias the distribution under rejection."""
    estimates = []
    for num_rejected in (1, 5):
        acceptance, batch = Acceptance(8), rows(100, 100)
        for _ in range(20):
            acceptance.observe(batch, [2 + num_rejected, 3], [2, 3])
        estimates.append(acceptance.survival_BK(batch))
    assert np.array_equal(*estimates)


def test_sequences_that_were_dropped_are_not_kept_in_memory():
    schedule, dropped = AdaptiveSchedule(FLAT, 4), []
    for _ in range(100):
        batch = rows(50, 50)  # never seen to finish, as after an engine was cleared
        play(schedule, batch, lambda row, length: min(length, 2), 1)
        dropped += [weakref.ref(sequence) for sequence in batch]
    del batch
    gc.collect()
    assert sum(reference() is not None for reference in dropped) <= 4


def test_a_token_must_pay_with_a_higher_chance_where_verification_costs_more():
    found = []
    for costs in (FLAT, LINE, replace(LINE, position_seconds=0.05)):
        plan = AdaptiveSchedule(costs, 4).plan(rows(100, 100), None, True)
        assert any(plan.lengths)
        found.append(plan.min_survival)
    assert found == sorted(found)
    assert len(set(found)) == 3
    assert 0 < found[0] < found[-1] < 1
    assert FixedSchedule(4).plan(rows(100, 100), None, True).min_survival == 0


def share_of_rest(
    took: Callable[[int], float],
    *,
    num_accepted: int = 0,
    num_able: int = 4,
    schedule: Schedule | None = None,
    reading: tuple[float, float] = (0.0, 0.0),
    burst: float = 0.0,
) -> float:
    """The share of 1500 rounds that are done without the drafter.

    The batch has 1 to 4 rows, and `took` says how long a round of them with the drafter takes. In front of every fourth
    round a prompt is read for `reading` times the time of a plain round, with drafts and in rest; once 16 prompts for
    `burst` times that.
    """
    schedule, num_rested = schedule or AdaptiveSchedule(LINE, 4), 0
    for number in range(1500):
        batch = rows(*[500] * (1 + number // 20 % 4))
        plain = LINE.target_seconds(len(batch))
        schedule.observe_reading(int(number % 4 == 0), reading[schedule.rests] * plain if number % 4 == 0 else 0.0)
        if number == 1:
            schedule.observe_reading(16, burst * plain)
        if schedule.rests:
            num_rested += 1
            schedule.observe_rest(len(batch), len(batch), LINE.target_seconds(len(batch)))
            continue
        plan = DraftPlan((1,) * len(batch), (True,) * len(batch))
        drafted = [int(row < num_able) for row in range(len(batch))]
        schedule.observe(plan, batch, drafted, [n * num_accepted for n in drafted], took(len(batch)))
    return num_rested / 1500


def test_a_drafter_rests_where_its_rounds_take_longer_and_yield_no_more():
    assert share_of_rest(lambda n: 1.2 * LINE.target_seconds(n)) > 0.85


def test_a_drafter_does_not_rest_where_its_rounds_yield_more_than_they_take_longer():
    assert share_of_rest(lambda n: 1.5 * LINE.target_seconds(n), num_accepted=1) < 0.1


def test_a_drafter_rests_where_it_takes_longer_to_read_prompts_than_its_drafts_save():
    gains = {"took": lambda n: 1.5 * LINE.target_seconds(n), "num_accepted": 1}
    assert share_of_rest(**gains, reading=(0.6, 0.0)) < 0.1, "1.5 and 0.15 plain rounds for two tokens"
    assert share_of_rest(**gains, reading=(4.0, 0.0)) > 0.7, "1.5 and 1 plain rounds for two tokens"


def test_a_drafter_that_reads_prompts_in_rest_too_does_not_rest_for_their_time():
    assert share_of_rest(lambda n: 1.5 * LINE.target_seconds(n), num_accepted=1, reading=(4.0, 4.0)) < 0.2


def test_many_rows_that_come_at_once_do_not_let_a_drafter_rest_for_long():
    assert share_of_rest(lambda n: 1.5 * LINE.target_seconds(n), num_accepted=1, burst=64.0) < 0.2


def test_a_drafter_does_not_rest_where_rounds_wait_for_another_process():
    schedule = AdaptiveSchedule(LINE, 4)
    schedule.never_rest()
    assert share_of_rest(lambda n: 1.2 * LINE.target_seconds(n), schedule=schedule) == 0


def share_of_foresight(
    took: float, num_tokens: int, schedule: Schedule, drafter_takes: float = 1.0, written_else: int = 4
) -> float:
    """The share of 1500 rounds of 4 rows whose grammars are asked what they foresee.

    Then a round takes `took` times as long as one without and yields `num_tokens`, else `written_else`.
    """
    num_asked, batch = 0, rows(*[500] * 4)
    plain = LINE.target_seconds(4)
    for _ in range(1500):
        asks = schedule.foresees
        num_asked += asks
        seconds, written = (took * plain, num_tokens) if asks else (plain, written_else)
        schedule.observe_foresight(4, written, seconds)
        if schedule.rests:
            schedule.observe_rest(4, written, seconds)
        else:
            plan = DraftPlan((1,) * 4, (True,) * 4)
            schedule.observe(plan, batch, (1,) * 4, (0,) * 4, drafter_takes * seconds)
    return num_asked / 1500


@pytest.mark.parametrize("drafter_takes", [1.0, 1.3])
def test_grammars_are_not_asked_what_they_foresee_where_that_takes_longer_than_it_saves(drafter_takes):
    assert share_of_foresight(1.2, 4, AdaptiveSchedule(LINE, 4), drafter_takes) < 0.15
    assert share_of_foresight(1.5, 5, AdaptiveSchedule(LINE, 4), drafter_takes) < 0.15


@pytest.mark.parametrize("drafter_takes", [1.0, 1.3])
def test_grammars_are_asked_what_they_foresee_where_that_saves_more_than_it_takes(drafter_takes):
    assert share_of_foresight(1.2, 6, AdaptiveSchedule(LINE, 4), drafter_takes) > 0.85
    assert share_of_foresight(1.2, 9, AdaptiveSchedule(LINE, 4), drafter_takes) > 0.85, "much faster than plain rounds"


def test_no_round_in_which_one_of_both_is_tried_counts_for_the_other():
    schedule, batch = AdaptiveSchedule(LINE, 4), rows(*[500] * 4)
    both = {"drafter": schedule._trials, "foresight": schedule._foresight}
    counted = dict.fromkeys(both, 0)
    for name, trials in both.items():

        def observe(done, num_rows, name=name, learn=trials.observe):
            counted[name] += 1
            return learn(done, num_rows)

        trials.observe = observe
    for _ in range(1500):
        numbers, on_trial = dict(counted), [name for name, trials in both.items() if trials.is_trial]
        assert len(on_trial) < 2
        schedule.observe_foresight(4, 4, LINE.target_seconds(4))
        if schedule.rests:
            schedule.observe_rest(4, 4, LINE.target_seconds(4))
        else:
            schedule.observe(DraftPlan((1,) * 4, (True,) * 4), batch, (1,) * 4, (0,) * 4, LINE.target_seconds(4))
        for name in on_trial:
            (other,) = both.keys() - {name}
            assert counted[other] == numbers[other]
            assert counted[name] == numbers[name] + 1
    assert min(counted.values()) > 500


def test_grammars_are_always_asked_where_lengths_are_fixed_and_where_rounds_wait_for_another_process():
    waiting = AdaptiveSchedule(LINE, 4)
    waiting.never_rest()
    assert share_of_foresight(1.5, 4, waiting) == 1
    assert FixedSchedule(4).foresees


def test_rounds_in_which_most_rows_cannot_draft_do_not_show_what_a_drafter_is_worth():
    assert share_of_rest(lambda n: 1.2 * LINE.target_seconds(n), num_able=0) == 0


def test_rounds_of_a_trial_in_which_most_rows_cannot_draft_are_a_part_of_what_it_costs(monkeypatch):
    waited = []
    monkeypatch.setattr(Trials, "wait_for_rows", lambda _, done: waited.append(done.time))
    plan = DraftPlan((1,) * 4, (False,) * 4)
    AdaptiveSchedule(LINE, 4).observe(plan, rows(*[500] * 4), [0, 0, 0, 1], [0] * 4, 1.2 * LINE.target_seconds(4))
    assert waited == pytest.approx([1.2])


def test_rows_that_may_not_draft_do_not_show_what_a_drafter_is_worth():
    schedule, batch = AdaptiveSchedule(LINE, 4), rows(500)
    batch[0].num_speculative_tokens = 0
    for _ in range(1500):
        assert not schedule.rests
        schedule.observe(schedule.plan(batch, None, True), batch, [0], [0], 1.2 * LINE.target_seconds(1))


@pytest.mark.parametrize("lookup_survival", [None, [[0.99] * 4] * 3])
@pytest.mark.parametrize("make", [FixedSchedule, lambda ceiling: AdaptiveSchedule(FLAT, ceiling)])
def test_a_row_drafts_no_more_than_it_may(make, lookup_survival):
    batch = rows(50, 50, 50)
    batch[0].num_speculative_tokens, batch[1].num_speculative_tokens = 0, 1
    offered = lookup_survival and [survival[:most] for survival, most in zip(lookup_survival, (0, 1, 4), strict=True)]
    assert lengths(make(4), batch, offered) == (0, 1, 4)


def test_a_plan_of_drafts_holds_for_some_rounds_of_the_same_rows(monkeypatch):
    planned = []
    monkeypatch.setattr(
        "decoding.pace.adaptive_schedule.best_lengths", lambda *args: planned.append(args[3]) or best_lengths(*args)
    )
    schedule, batch = AdaptiveSchedule(FLAT, 8), tuple(rows(6, 500))
    assert [lengths(schedule, batch) for _ in range(2)] == [(5, 8)] * 2
    batch[0].output_token_ids += [1, 2, 3]
    assert lengths(schedule, batch) == (2, 8), "a row drafts what it can keep"
    assert planned == [2]
    assert lengths(schedule, batch, has_model=False) == (0, 0)
    lengths(schedule, (batch[0], *rows(500)))
    assert planned == [2, 2], "other rows have another plan"


def test_a_row_looks_up_in_a_plan_that_holds_if_it_finds_more_than_the_model_would_draft():
    schedule, batch = AdaptiveSchedule(DEAR_DRAFTS, 8), tuple(rows(500, 500))
    plan = schedule.plan(batch, [[], []], has_model=True)
    assert min(plan.lengths) >= 2
    kept = schedule.plan(batch, [[0.99] * 8, [0.5]], has_model=True)
    assert kept.uses_lookup == (True, False)
    assert kept.lengths == (8, plan.lengths[1])
    assert kept.extension_limits[1].max_tokens == 8 - plan.lengths[1]


def test_a_lookup_that_is_only_probed_is_drafted_in_one_round_at_a_time():
    schedule, batch = AdaptiveSchedule(DEAR_DRAFTS, 8), tuple(rows(5000, 5000))
    plans = play(schedule, batch, lambda row, length: length, 1000, [[0.2]] * 2)
    looked_up = [any(plan.uses_lookup) for plan in plans]
    assert any(looked_up)
    assert not any(now and before for before, now in pairwise(looked_up))
