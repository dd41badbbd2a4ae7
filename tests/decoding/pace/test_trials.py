"""Rounds are done without the drafter where that is faster by the clock, and with it where it is not."""

import random

import pytest

from decoding.pace.compared import Round
from decoding.pace.trials import Trials


def shares(speed_with, speed_without: float, num_rounds: int = 4000, noise: float = 0.2, seed: int = 0) -> list[bool]:
    """Which rounds were done without the drafter; `speed_with` may depend on the round."""
    chance, trials, rested = random.Random(seed), Trials(), []
    for number in range(num_rounds):
        rested.append(trials.is_resting)
        speed = speed_without if trials.is_resting else speed_with(number)
        trials.observe(Round(1.0, 1 / (speed * chance.uniform(1 - noise, 1 + noise))), num_rows=16)
    return rested


@pytest.mark.parametrize("seed", range(2))
def test_a_drafter_that_is_slower_than_none_rests_in_nearly_all_rounds(seed):
    rested = shares(lambda _: 0.7, 1.0, seed=seed)
    assert sum(rested) / len(rested) > 0.97
    assert not all(rested[-3000:]), "it is tried again now and then"


@pytest.mark.parametrize("seed", range(2))
def test_a_drafter_that_is_faster_than_none_hardly_ever_rests(seed):
    assert sum(shares(lambda _: 1.4, 1.0, seed=seed)) < 0.02 * 4000


@pytest.mark.parametrize(("second", "rests"), [(0.9, False), (1.04, True)])
def test_what_seems_a_little_faster_is_tried_once_more_before_it_goes_on(second, rests):
    trials, speeds, was_trial = Trials(), [1.0, 1.04, second], False
    for _ in range(130):
        if trials.is_trial and not was_trial:
            del speeds[0]  # that of the trial before
        was_trial = trials.is_trial
        trials.observe(Round(1.0, 1 / speeds[0] if was_trial else 1.0), num_rows=16)
    assert speeds == [second]
    assert trials.is_resting == rests


def test_a_drafter_goes_on_only_if_it_is_two_percent_faster_than_rest():
    assert sum(shares(lambda _: 1.015, 1.0, noise=0.0)) > 0.95 * 4000
    assert sum(shares(lambda _: 1.025, 1.0, noise=0.0)) < 0.05 * 4000


@pytest.mark.parametrize("between", ["rounds are forgotten", "drafts need no trial"])
def test_a_second_trial_that_does_not_come_soon_is_a_first_one_again(between):
    trials = Trials()

    def until_decided(num_trials: int) -> None:
        while num_trials or trials.is_trial:
            was_trial = trials.is_trial
            trials.observe(Round(1.0, 1 / 1.04 if trials.is_trial else 1.0), num_rows=16)
            num_trials -= trials.is_trial and not was_trial
        for _ in range(26):
            trials.observe(Round(1.0, 1.0), num_rows=16)

    until_decided(1)
    if between == "rounds are forgotten":
        trials.forget_rounds()
    else:
        for _ in range(100):
            trials.observe(Round(2.0, 1.0), num_rows=16)
    until_decided(1)
    assert not trials.is_resting


def test_a_drafter_that_becomes_faster_is_found_out():
    rested = shares(lambda number: 0.7 if number < 1000 else 1.6, 1.0, num_rounds=6000)
    assert sum(rested[500:1000]) > 0.9 * 500
    assert sum(rested[-2000:]) < 0.1 * 2000


def test_a_drafter_that_becomes_slower_is_found_out():
    rested = shares(lambda number: 2.0 if number < 1000 else 0.6, 1.0, num_rounds=8000)
    assert sum(rested[:1000]) == 0
    assert sum(rested[-2000:]) > 0.95 * 2000


@pytest.mark.parametrize("num_rounds", [20, 35], ids=["in a trial", "behind one"])
def test_a_trial_that_something_else_disturbs_changes_nothing(num_rounds):
    trials = Trials()
    for number in range(num_rounds):
        trials.observe(Round(1.0, 0.95 if trials.is_resting else 1.0), num_rows=16)
        assert trials.is_trial == (15 <= number < 29)
    trials.forget_rounds()
    assert not trials.is_trial
    assert not trials.is_resting
    for _ in range(20):
        trials.observe(Round(1.0, 1.0), num_rows=16)


@pytest.mark.parametrize(("rest", "num_before_rest"), [(1.15, 16), (1.08, 2 * (16 + 26))])
def test_a_drafter_that_an_engine_begins_with_goes_to_rest_at_the_end_of_the_first_trial(rest, num_before_rest):
    """Rest is compared with rounds behind its trial, and tried twice, only where it is less than a tenth faster."""
    trials, drafted = Trials(), 0
    while not trials.is_resting or trials.is_trial:
        drafted += not trials.is_resting
        trials.observe(Round(1.0, 1 / rest if trials.is_resting else 1.0), num_rows=16)
    assert drafted == num_before_rest


def test_another_drafter_is_compared_with_rounds_behind_its_trial_though_it_is_the_first_of_all():
    trials, num_rounds = Trials((False, False)), 0
    while trials.settled == 0:  # rest is not tried: drafts are clearly faster
        num_rounds += not trials.is_trial
        trials.observe(Round(2.0, 1 / 1.15 if trials.is_trial else 1.0), num_rows=16)
    assert num_rounds == 17 + 26


def test_one_slow_round_decides_nothing():
    trials, rested = Trials(), 0
    for number in range(2000):
        rested += trials.is_resting
        time = 100.0 if number % 5 == 0 else 1.0
        trials.observe(Round(1.0 if trials.is_resting else 1.3, time), num_rows=16)
    assert rested < 0.05 * 2000


@pytest.mark.parametrize(
    ("num_rows", "time", "num_rounds"), [(1, 1.0, 128), (1, 1.1, 32), (4, 1.0, 32), (16, 1.1, 16), (256, 1.0, 16)]
)
def test_the_first_trial_waits_until_acceptance_is_known_and_less_long_if_drafts_look_slow(num_rows, time, num_rounds):
    trials = Trials()
    for _ in range(num_rounds):
        assert not trials.is_resting
        trials.observe(Round(1.0, time), num_rows)
    assert trials.is_resting


@pytest.mark.parametrize(("num_rows", "num_rounds"), [(1, 24), (4, 12), (16, 12)])
def test_a_trial_counts_more_rounds_where_there_are_fewer_rows(num_rows, num_rounds):
    trials, rested = Trials(), 0
    for _ in range(200):
        rested += trials.is_resting
        trials.observe(Round(1.0, 1.25 if trials.is_resting else 1.0), num_rows)
    assert rested == 2 + num_rounds, "and the two rounds after the change do not count"


@pytest.mark.parametrize(("rest_speed", "num_kept", "num_without"), [(0.7, 6, 0), (0.9, 14, 14), (1.05, 14, 14)])
def test_features_go_on_in_a_trial_of_rest_until_it_could_be_the_faster_way(rest_speed, num_kept, num_without):
    """Rows that miss features never draft again, so they are kept where rest is slower than features can explain."""
    trials, kept, without = Trials(has_features=(True,)), 0, 0
    for _ in range(16 + 2 * 14):
        kept += trials.is_resting and trials.keeps_features
        without += trials.is_resting and not trials.keeps_features
        trials.observe(Round(1.0, 1 / rest_speed if trials.is_resting else 1.0), num_rows=16)
    assert kept == num_kept, "two rounds after the change, and twelve that count, or four where rest is clearly slower"
    assert without == num_without
    assert trials.is_resting == (rest_speed > 1), "rows that missed features wait for no second trial"
    assert not trials.keeps_features, "a rest that is settled needs none"


@pytest.mark.parametrize(("has_features", "num_rounds"), [(False, 96), (True, 384)])
def test_a_drafter_whose_rows_cannot_draft_when_it_wakes_is_tried_again_later(has_features, num_rounds):
    trials, between = Trials(has_features=(has_features,)), 0
    while not trials.is_resting or trials.is_trial:
        trials.observe(Round(1.0, 1.0 if trials.is_resting else 1.2), num_rows=16)
    while not trials.is_trial:
        between += 1
        trials.observe(Round(1.0, 1.0), num_rows=16)
    assert between == num_rounds


@pytest.mark.parametrize("seed", range(2))
def test_a_drafter_that_seems_a_little_faster_does_not_wake(seed):
    rested = shares(lambda number: 0.7 if number < 100 else 1.02, 1.0, noise=0.05, seed=seed)
    assert sum(rested) > 0.95 * len(rested)


@pytest.mark.parametrize("num_waited", [0, 100])
def test_rounds_in_which_rows_cannot_draft_yet_are_a_part_of_what_a_trial_costs(num_waited):
    trials, num_trials, between = Trials(), 0, 0
    while num_trials < 3:  # of rest, then of drafts twice
        was_trial = trials.is_trial
        trials.observe(Round(1.0, 1.0 if trials.is_resting else 1.5), num_rows=16)
        if trials.is_trial and not was_trial:
            num_trials += 1
            for _ in range(num_waited):
                trials.wait_for_rows(Round(1.0, 1.5))
        between += num_trials == 2 and not trials.is_trial
    assert between > 100 * 0.5 * 128 if num_waited else between < 2000


@pytest.mark.parametrize("num_missed", [50.0, 500.0])
def test_a_trial_that_costs_much_is_not_repeated_soon(num_missed):
    """The drafter reads what it missed while it rested, which takes as long as `num_missed` rounds."""
    trials, in_trials, whole, num_rested = Trials(), 0.0, 0.0, 0
    for number in range(int(120 * num_missed)):
        time = 1.0
        if trials.is_resting:
            num_rested += 1
        else:
            time = num_missed if num_rested else 1.2
            num_rested = 0
        if number >= 100:
            in_trials += 0.0 if trials.is_resting else time
            whole += time
        trials.observe(Round(1.0, time), num_rows=16)
    assert 0 < in_trials < 0.03 * whole


def test_a_machine_that_stood_still_in_a_trial_does_not_end_all_trials():
    trials, rested = Trials(), []
    for number in range(70_000):
        rested.append(trials.is_resting)
        trials.observe(Round(1.0 if trials.is_resting else 0.9, 1e9 if number == 20 else 1.0), num_rows=16)
    assert not rested[15]
    assert rested[20]
    assert sum(rested[-1000:]) > 900


@pytest.mark.parametrize(("level", "rest", "rests"), [(1.3, 1.25, False), (0.8, 0.85, True)])
def test_a_machine_that_changes_its_pace_when_a_trial_begins_does_not_decide_it(level, rest, rests):
    """Before the trial rounds with the drafter take `level`, behind it 1; those of rest take `rest` from then on."""
    trials, has_begun = Trials(), False
    for _ in range(2 * (16 + 14 + 2 + 24)):  # what seems a little faster is tried twice
        has_begun |= trials.is_resting
        time = rest if trials.is_resting else 1.0 if has_begun else level
        trials.observe(Round(1.0, time), num_rows=16)
    assert has_begun
    assert trials.is_resting == rests


@pytest.mark.parametrize(("speed", "num_tried"), [(0.5, 6), (0.9, 14)])
def test_a_trial_that_is_clearly_slower_ends_early(speed, num_tried):
    trials = Trials()
    while not trials.is_resting or trials.is_trial:  # the drafter rests after the first trial
        trials.observe(Round(1.0, 1.0 if trials.is_resting else 2.0), num_rows=16)
    while trials.is_resting:
        trials.observe(Round(1.0, 1.0), num_rows=16)
    tried = 0
    while not trials.is_resting:
        trials.observe(Round(1.0, 1 / speed), num_rows=16)
        tried += 1
    assert tried == num_tried


@pytest.mark.parametrize("length", [20, 200])
def test_rounds_that_draft_much_and_gain_little_are_not_taken_for_other_work(length):
    """Most of `length` rounds draft nothing, and the others write 5 tokens in the time of 9: rest is the faster way."""
    trials = Trials()
    for number in range(3000):
        if trials.is_resting:
            done = Round(1.0, 1.0)
        else:
            done = Round(5.0, 9.0, 9.0) if number % length < length // 3 else Round(1.0, 1.2)
        trials.observe(done, num_rows=16)
    assert trials.is_resting


def test_drafts_that_become_slower_than_rest_was_are_tried_against_it_before_their_time():
    """A trial that loses as much as the first one here is followed by the next one after some 600 rounds."""
    trials = Trials()

    def rounds(number: int, of_drafts: float) -> list[bool]:
        rested = []
        for _ in range(number):
            rested.append(trials.is_resting)
            trials.observe(Round(1.0, 1.25 if trials.is_resting else of_drafts), num_rows=16)
        return rested

    assert any(rounds(100, of_drafts=0.7))
    assert not any(rounds(300, of_drafts=0.7))
    assert not any(rounds(20, of_drafts=2.0))
    assert any(rounds(60, of_drafts=2.0))
    assert all(rounds(100, of_drafts=2.0))


def test_a_drafter_that_a_trial_took_for_the_faster_way_by_mistake_rests_again_soon():
    trials = Trials()
    while trials.settled == 0:
        trials.observe(Round(1.0, 1.0 if trials.is_resting else 2.0), num_rows=16)
    while trials.is_resting or trials.is_trial:
        trials.observe(Round(1.0, 1.0 if trials.is_resting else 0.5), num_rows=16)
    num_rounds = 0
    while not trials.is_resting:
        trials.observe(Round(1.0, 1.25), num_rows=16)
        num_rounds += 1
    assert num_rounds <= 48 + 16, "as many rounds as are kept, and until the next look at them"
