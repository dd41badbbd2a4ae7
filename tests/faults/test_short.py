"""All kinds of deaths in one run: what `make test` has of the tests on a cluster; the rest is `make test-faults`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.faults.cluster import RayCluster
from tests.faults.runs import NUM_ACTORS, UNITS_IN_FLIGHT, NewRun
from tests.faults.strikes import kill_random_workers, wait_for_work

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]


def test_a_run_whose_workers_node_and_driver_are_killed_loses_nothing_and_repeats_little(
    cluster: RayCluster, new_run: NewRun, say: Callable[[str], None]
) -> None:
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
