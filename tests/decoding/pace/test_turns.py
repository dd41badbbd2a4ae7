"""The fastest of several drafters leads, by the clock; one that stops paying is dropped, and comes back if it pays."""

import random
from collections import Counter
from collections.abc import Callable

import pytest

from decoding.pace.compared import Round
from decoding.pace.learned import Learned
from decoding.pace.trials import REST, Trials

Speeds = Callable[[int], list[float]]  # by the number of a round: of each drafter, and of rest


def ways(speeds: Speeds, trials: Trials, num_rounds: int = 4000, noise: float = 0.3, seed: int = 0) -> list[int]:
    """In which way each round was done."""
    chance, found = random.Random(seed), []
    for number in range(num_rounds):
        found.append(trials.way)
        speed = speeds(number)[trials.way]
        trials.observe(Round(1.0, 1 / (speed * chance.uniform(1 - noise, 1 + noise))), num_rows=16)
    return found


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("best", [0, 2, 4, REST])
def test_the_fastest_way_leads_and_all_others_cost_little(best, seed):
    speeds = [0.8, 1.1, 0.5, 1.0, 0.9, 0.85]
    speeds[best] = 1.4
    found = ways(lambda _: speeds, Trials((False,) * 5), num_rounds=6000, seed=seed)
    assert {*found} == {*range(5), REST}, "all were tried"
    assert sum(1 / speeds[way] for way in found) * 1.4 < 1.05 * sum(speeds[way] / speeds[way] for way in found)


def test_a_drafter_that_stops_paying_is_dropped_and_comes_back_when_it_pays_again():
    speeds = [[0.9, 1.8, 1.2, 1.0], [0.9, 0.5, 1.2, 1.0], [0.9, 1.8, 1.2, 1.0]]
    found = ways(lambda number: speeds[number // 6000], Trials((False,) * 3), num_rounds=18_000)
    last = [Counter(found[end - 1000 : end]).most_common(1)[0] for end in (6000, 12_000, 18_000)]
    assert [way for way, _ in last] == [1, 2, 1]
    assert all(number > 900 for _, number in last)


def test_a_trial_waits_for_rounds_of_the_way_that_has_just_settled():
    """Else it would be compared with one round, in which that drafter reads what it missed."""
    trials, num_settled = Trials((False,) * 5), 0
    while trials.settled != 4:
        was_trial = trials.is_trial
        has_changed = trials.observe(Round(1.0, 1 / [0.7, 1.5, 0.6, 0.8, 2.4, 1.0][trials.way]), num_rows=16)
        num_settled = 0 if has_changed else num_settled + (not was_trial)
        assert num_settled >= 12 or was_trial or not trials.is_trial
    assert trials.tallies[1].num_rounds >= 12


def test_rest_that_lost_much_beside_one_drafter_is_tried_soon_beside_another_one_that_becomes_slower():
    trials = Trials((False,) * 6)
    ways(lambda _: [1.4, 0.6, *[0.4] * 4, 1.2], trials, num_rounds=2000, noise=0.0)
    assert trials.settled == 0
    while trials.settled != 1:
        ways(lambda _: [1.4, 1.49, *[0.4] * 4, 1.2], trials, num_rounds=1, noise=0.0)
    ways(lambda _: [0.6, 1.1, *[0.4] * 4, 1.2], trials, num_rounds=200, noise=0.0)
    assert trials.settled == REST


def test_features_of_a_head_go_on_before_its_trial_until_rows_can_draft_and_no_longer():
    trials, prepared = Trials((False, True)), 0
    for _ in range(3000):
        if trials.prepared is not None:
            prepared += 1
            assert trials.awake == {0, 1}
            assert trials.way == 0, "the settled drafter goes on"
            trials.is_prepared = prepared % 20 == 0
        elif not trials.is_trial:
            assert trials.awake == {0}
        trials.observe(Round(1.0, 1.0 if trials.way == 0 else 1.1), num_rows=16)
    assert prepared > 20
    assert trials.tallies[1].num_trials > 1


def test_what_had_no_turn_has_no_figures():
    trials = Trials((False,) * 3)
    ways(lambda _: [1.2, 1.0, 1.0, 1.0], trials, num_rounds=31, noise=0.0)
    figures = {each["drafts"]: each for each in Learned.of(["a", "b", "c"], trials).figures()}
    assert [*figures] == ["a", "none", "b", "c"]
    assert [figures[name]["rounds"] for name in ("none", "b", "c")] == [14, 0, 0]
    assert [figures[name]["times_plain"] for name in ("a", "none", "b", "c")] == [1.2, 1.0, None, None]
    first = Learned.of(["a", "b"], Trials((False,) * 2))
    assert {each["times_plain"] for each in first.figures()} == {None}


def test_a_new_engine_begins_with_the_leader_of_others_and_one_that_works_tries_it_soon():
    first, second = Trials((False,) * 3), Trials((False,) * 2)
    ways(lambda _: [0.5, 1.0, 1.8, 1.0], first)
    learned = Learned.together([Learned.of(["a", "b", "c"], first)])
    assert learned.leader == "c"
    assert learned.ratios["a"] < 0.5
    learned.teach(["c", "a"], second)
    assert (second.settled, second.way, second.drafter) == (0, 0, 0)
    third = Trials((False,) * 2)
    learned.teach(["a", "c"], third)
    assert (third.settled, third.way, third.drafter) == (1, 1, 1)
    assert ways(lambda _: [0.5, 1.8, 1.0], third, num_rounds=300).count(0) == 0, "what is clearly slower is tried later"
    fourth = Trials((False,) * 2)
    ways(lambda _: [1.0, 0.5, 0.9], fourth, num_rounds=3000)
    learned.teach(["a", "c"], fourth)
    assert fourth.settled == 0, "what it found itself stands until it has tried"
    assert 1 in ways(lambda _: [1.0, 1.8, 0.9], fourth, num_rounds=40)


def test_of_several_engines_most_have_the_word():
    told = [Learned("a", {"b": 0.9}), Learned("b", {"a": 0.7}), Learned("a", {"c": 0.4})]
    assert Learned.together(told) == Learned("a", {"b": 0.9, "c": 0.4})
