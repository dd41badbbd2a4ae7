"""Drivers that are killed, several in a row, and the same command that goes on each time."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.faults.runs import NUM_ACTORS, PATIENCE_S, UNITS_IN_FLIGHT, NewRun
from tests.jobs.runs import wait_until

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]
NUM_KILLS = 4


def test_drivers_that_are_killed_one_after_the_other_change_nothing(
    new_run: NewRun, say: Callable[[str], None]
) -> None:
    run, rng = new_run(), random.Random(0)
    driver = run.start()
    wait_until(lambda: bool(run.diary.loading()) or driver.has_ended, PATIENCE_S)  # before anything is done
    driver.kill()
    for _ in range(NUM_KILLS - 2):
        before = run.commits()
        driver = run.start()
        run.wait_for_commits(len(before) + rng.randint(1, 8), driver)
        driver.kill()
        assert before.items() <= run.commits().items(), "what was committed was generated again"
    driver = run.start()
    run.wait_for_commits(run.corpus.num_units, driver)  # all is done, and nothing verified
    driver.process.kill()
    driver.wait(-9, 0)
    assert len(run.commits()) == run.corpus.num_units
    run.start().wait(0)
    at_most = UNITS_IN_FLIGHT * NUM_ACTORS * NUM_KILLS
    say(f"{NUM_KILLS} drivers killed; {run.prove_nothing_lost(at_most)}")
