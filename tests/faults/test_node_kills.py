"""Nodes that are killed in the midst of a run, and nodes that come back."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.faults.cluster import RayCluster
from tests.faults.conftest import NewRun
from tests.faults.runs import UNITS_IN_FLIGHT
from tests.faults.strikes import wait_for_work_on

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]


def test_nodes_that_are_killed_one_after_the_other_and_one_that_comes_back_change_nothing(
    cluster: RayCluster, new_run: NewRun, say: Callable[[str], None]
) -> None:
    run = new_run()
    driver = run.start()
    first, second = list(cluster.workers)
    num_lost = len(wait_for_work_on(run, driver, first))
    cluster.kill_node(first)
    run.wait_for_commits(len(run.commits()) + 3, driver)
    returned = cluster.add_node()
    num_lost += len(wait_for_work_on(run, driver, second))
    driver.refuse_ended()
    cluster.kill_node(second)
    driver.wait(0)
    nodes = {entry.node for entry in run.diary.entries() if entry.what == "committed"}
    assert returned in nodes, "nothing was done where nobody but the node that came back could do it"
    say(f"2 nodes with {num_lost} processes; {run.prove_nothing_lost(UNITS_IN_FLIGHT * num_lost)}")
    deaths, _, given_up = driver.summary()
    assert (deaths, given_up) == (0, 0), "the death of a node was held against a row"
