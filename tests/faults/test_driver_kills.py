"""Drivers that are killed, beside workers and a node or several in a row, and the same command that goes on."""

import random

import pytest

from tests.faults.runs import NUM_ACTORS, PATIENCE_S, UNITS_IN_FLIGHT
from tests.faults.strikes import kill_random_workers, wait_for_work
from tests.jobs.runs import wait_until

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]
NUM_KILLS = 4


def test_a_run_whose_workers_node_and_driver_are_killed_loses_nothing_and_repeats_little(cluster, new_run, say):
    """All kinds of deaths in one run: what `make test` has of these tests. The others are slow."""
    run = new_run()
    driver = run.start()
    kill_random_workers(run, driver, seed=0, num_kills=2)
    node, lost = wait_for_work(run, driver)
    cluster.kill_node(node)
    run.wait_for_commits(len(run.commits()) + 2, driver)
    driver.kill()
    run.start().wait(0)
    at_most = UNITS_IN_FLIGHT * (2 + len(lost) + NUM_ACTORS)
    say(f"2 workers, a node, a driver killed; {run.prove_nothing_lost(at_most)}")


@pytest.mark.slow
def test_drivers_that_are_killed_one_after_the_other_change_nothing(new_run, say):
    run, rng = new_run(), random.Random(0)
    driver = run.start()
    driver.wait_until(lambda: bool(run.diary.loading()))  # before anything is done
    driver.kill()
    for _ in range(NUM_KILLS - 2):
        before = run.commits()
        driver = run.start()
        run.wait_for_commits(len(before) + rng.randint(1, 8), driver)
        driver.kill()
        assert before.items() <= run.commits().items(), "what was committed was generated again"
    driver = run.start()
    # All is done, and nothing verified.
    wait_until(lambda: len(run.commits()) == run.corpus.num_units or driver.has_ended, PATIENCE_S)
    driver.process.kill()
    driver.wait(-9, 0)
    assert len(run.commits()) == run.corpus.num_units
    run.start().wait(0)
    at_most = UNITS_IN_FLIGHT * NUM_ACTORS * NUM_KILLS
    say(f"{NUM_KILLS} drivers killed; {run.prove_nothing_lost(at_most)}")
