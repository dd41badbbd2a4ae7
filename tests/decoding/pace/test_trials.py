"""Rounds are done without the drafter where that is faster by the clock, and with it where it is not."""

import random

import pytest

from decoding.pace.trials import Trials


def shares(speed_with, speed_without: float, num_rounds: int = 4000, noise: float = 0.2, seed: int = 0) -> list[bool]:
    """Which rounds were done without the drafter; `speed_with` may depend on the round."""
    chance, trials, rested = random.Random(seed), Trials(), []
    for number in range(num_rounds):
        rested.append(trials.is_resting)
        speed = speed_without if trials.is_resting else speed_with(number)
        trials.observe(speed * chance.uniform(1 - noise, 1 + noise), num_rows=16)
    return rested


@pytest.mark.parametrize("seed", range(5))
def test_a_drafter_that_is_slower_than_none_rests_in_nearly_all_rounds(seed):
    rested = shares(lambda _: 0.7, 1.0, seed=seed)
    assert sum(rested) / len(rested) > 0.97
    assert not all(rested[-3000:]), "it is tried again now and then"


@pytest.mark.parametrize("seed", range(5))
def test_a_drafter_that_is_faster_than_none_hardly_ever_rests(seed):
    assert sum(shares(lambda _: 1.4, 1.0, seed=seed)) < 0.02 * 4000


def test_a_drafter_that_is_clearly_faster_is_not_compared():
    assert sum(shares(lambda _: 2.0, 1.0)) == 0


def test_a_drafter_that_becomes_faster_is_found_out():
    rested = shares(lambda number: 0.7 if number < 1000 else 1.6, 1.0, num_rounds=6000)
    assert sum(rested[500:1000]) > 0.9 * 500
    assert sum(rested[-2000:]) < 0.1 * 2000


def test_a_drafter_that_becomes_slower_is_found_out():
    rested = shares(lambda number: 2.0 if number < 1000 else 0.6, 1.0, num_rounds=8000)
    assert sum(rested[:1000]) == 0
    assert sum(rested[-2000:]) > 0.95 * 2000


def test_one_slow_round_decides_nothing():
    trials, rested = Trials(), 0
    for number in range(2000):
        rested += trials.is_resting
        trials.observe(0.01 if number % 5 == 0 else 1.0 if trials.is_resting else 1.3, num_rows=16)
    assert rested < 0.05 * 2000


@pytest.mark.parametrize(("num_rows", "num_rounds"), [(1, 128), (4, 32), (16, 16), (256, 16)])
def test_the_first_trial_waits_until_acceptance_is_known(num_rows, num_rounds):
    trials = Trials()
    for _ in range(num_rounds):
        assert not trials.is_resting
        trials.observe(1.0, num_rows)
    assert trials.is_resting
