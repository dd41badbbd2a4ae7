"""How many tokens rows draft: never more than they can keep, and as many as pay."""

import itertools

import pytest

from decoding import Engine, EngineOptions, SamplingParams, Sequence
from decoding.schedule import AdaptiveSchedule, CostTable, FixedSchedule, best_lengths

FLAT = CostTable(target=((1, 1.0), (1000, 1.0)), draft=((1, 0.05), (64, 0.05)))  # a forward costs the same for any size
STEEP = CostTable(target=((1, 1.0), (1000, 1000.0)), draft=((1, 0.05), (64, 0.05)))  # every token costs a token


def rows(*num_left: int) -> list[Sequence]:
    return [Sequence.create([1], SamplingParams(max_tokens=n)) for n in num_left]


@pytest.mark.parametrize(("num_left", "expected"), [(1, 0), (2, 1), (4, 3), (5, 4), (6, 4), (100, 4)])
@pytest.mark.parametrize("schedule", [FixedSchedule(4), AdaptiveSchedule(FLAT, 4)], ids=["fixed", "adaptive"])
def test_a_row_never_drafts_more_than_its_limit_lets_it_keep(schedule, num_left, expected):
    sequence = Sequence.create([1, 2], SamplingParams(max_tokens=num_left + 3))
    sequence.output_token_ids += [5, 6, 7]
    (length,) = schedule.lengths([sequence])
    assert length == expected if isinstance(schedule, FixedSchedule) else length <= expected


def test_every_row_gets_a_length_of_its_own():
    assert FixedSchedule(6).lengths(rows(1, 3, 50)) == (0, 2, 6)


@pytest.mark.parametrize("costs", [FLAT, STEEP, CostTable(((1, 1.0), (4, 1.2), (8, 3.0)), ((1, 0.3), (4, 0.4)))])
@pytest.mark.parametrize("rates", [(0.9,), (0.3, 0.8), (0.95, 0.5, 0.1), (0.7, 0.7, 0.7)])
def test_the_lengths_are_the_best_of_all_lengths(costs, rates):
    ceiling = 3

    def speed(lengths: tuple[int, ...]) -> float:
        expected = sum(sum(rate**j for j in range(n + 1)) for rate, n in zip(rates, lengths, strict=True))
        drafting = max(lengths) * costs.draft_seconds(len(rates))
        return expected / (drafting + costs.target_seconds(len(rates) + sum(lengths)))

    best = max(speed(lengths) for lengths in itertools.product(range(ceiling + 1), repeat=len(rates)))
    assert speed(best_lengths(rates, [ceiling] * len(rates), costs)) == pytest.approx(best)


def test_nothing_is_drafted_where_every_token_costs_its_full_price():
    assert best_lengths([0.9] * 4, [8] * 4, STEEP) == (0, 0, 0, 0)


def test_rows_that_accept_more_draft_more():
    costs = CostTable(target=((1, 1.0), (101, 11.0)), draft=((1, 0.05), (64, 0.05)))
    high, low = best_lengths([0.95, 0.3], [8, 8], costs)
    assert high > low


def test_a_schedule_learns_that_drafts_fall_and_stops_then_looks_again_now_and_then():
    costs = CostTable(target=((1, 1.0), (1000, 1.5)), draft=((1, 0.3), (64, 0.3)))
    schedule = AdaptiveSchedule(costs, 8)
    batch = rows(500)
    assert schedule.lengths(batch)[0] > 0
    for _ in range(50):
        schedule.observe([4], [0])
    lengths = [schedule.lengths(batch)[0] for _ in range(200)]
    assert set(lengths) == {0, 1}
    assert lengths.count(1) == 3


def test_what_a_row_drafts_depends_on_what_it_accepted_not_on_what_was_rejected():
    """A policy that looks at rejected guesses would bias the law under rejection."""
    one, other = rows(100, 100)
    for sequence, rejected in ((one, 1), (other, 7)):
        sequence.commit([5, 6, 7], num_draft_tokens=2 + rejected, eos_token_ids=frozenset())
    assert one.num_tried_tokens == other.num_tried_tokens == 3


def test_an_adaptive_engine_measures_itself_and_leaves_no_trace_in_its_caches(folders):
    params = SamplingParams(max_tokens=30, ignore_eos=True)
    plain = Engine.load(folders.target, options=EngineOptions(num_slots=3))
    adaptive = Engine.load(folders.target, folders.good_draft, EngineOptions(num_slots=3))
    assert isinstance(adaptive.schedule, AdaptiveSchedule)
    prompts = [[5, 6, 7], [8], [9, 10], [11, 12, 13, 14]]
    texts = [[s.output_token_ids for s in engine.generate(prompts, params)] for engine in (plain, adaptive)]
    assert texts[0] == texts[1]


KNEE = CostTable(target=((1, 1.0), (32, 1.1), (64, 2.0), (256, 8.0)), draft=((1, 0.1), (16, 0.12), (64, 0.2)))


@pytest.mark.parametrize("costs", [FLAT, STEEP, KNEE, CostTable(((1, 1.0), (101, 11.0)), ((1, 0.05), (64, 0.05)))])
@pytest.mark.parametrize("rate", [0.3, 0.6, 0.8, 0.95])
def test_draft_lengths_never_fall_as_the_batch_drains(costs, rate):
    """The last rows of a job draft the most: a forward over few rows has room for more tokens of each."""
    schedule = AdaptiveSchedule(costs, 8)
    schedule._accepted = schedule._tried * rate
    longest = [max(schedule.lengths(rows(*[100] * num_rows))) for num_rows in (64, 48, 32, 16, 8, 4, 2, 1)]
    assert longest == sorted(longest)
    if costs is KNEE and rate > 0.5:
        assert longest[-1] > longest[0]
