"""Nodes that are killed in the midst of a run, and nodes that come back."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.faults.cluster import RayCluster
from tests.faults.runs import PATIENCE_S, UNITS_IN_FLIGHT, FaultRun, NewRun
from tests.faults.strikes import wait_for_work
from tests.jobs.runs import wait_until

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]


def test_nodes_that_are_killed_one_after_the_other_and_one_that_comes_back_change_nothing(
    cluster: RayCluster, new_run: NewRun, say: Callable[[str], None]
) -> None:
    run = new_run()
    driver = run.start(pause_s=3.0)  # a node takes its time to come
    first, lost = wait_for_work(run, driver)
    cluster.kill_node(first)
    (second,) = cluster.workers
    run.wait_for_commits(len(run.commits()) + 3, driver)
    returned = cluster.add_node()
    _, lost_then = wait_for_work(run, driver, second)
    cluster.kill_node(second)
    driver.wait(0)
    nodes = {entry.node for entry in run.diary.entries() if entry.what == "committed"}
    assert returned in nodes, "nothing was done where nobody but the node that came back could do it"
    num_lost = len(lost) + len(lost_then)
    say(f"2 nodes with {num_lost} processes; {run.prove_nothing_lost(UNITS_IN_FLIGHT * num_lost)}")
    deaths, _, given_up = driver.summary()
    assert (deaths, given_up) == (0, 0), "the death of a node was held against a row"


def test_a_node_that_is_killed_while_an_actor_is_started_on_it_changes_nothing(
    cluster: RayCluster, new_run: NewRun, say: Callable[[str], None]
) -> None:
    run = new_run()
    driver = run.start(pause_s=1.0)
    run.wait_for_commits(1, driver)
    for _ in range(2):
        at_work, _ = wait_for_work(run, driver)
        num_loads = len(loads(run))
        cluster.kill_node(at_work)  # its actors are started again, here or there
        cluster.grow_to(2)
        wait_until(lambda least=num_loads: len(loads(run)) > least or driver.has_ended, PATIENCE_S, every_s=0.05)
        driver.refuse_ended()
        cluster.kill_node(loads(run)[-1])
        cluster.grow_to(2)
    driver.wait(0)
    say(f"4 nodes, two of which were starting an actor; {run.prove_nothing_lost(UNITS_IN_FLIGHT * 8)}")
    assert driver.summary()[2] == 0, "an innocent row was given up"


def loads(run: FaultRun) -> list[str]:
    """The nodes where actors began to load their models, in order."""
    return [entry.node for entry in run.diary.entries() if entry.what == "loading"]


def test_nodes_with_stages_of_a_target_that_are_killed_change_nothing(
    cluster: RayCluster, new_run: NewRun, say: Callable[[str], None]
) -> None:
    run = new_run("--stages.count=2", "--stages.num_cpus=0.1", "--stages.strategy=SPREAD")
    driver = run.start(pause_s=3.0)
    first, lost = wait_for_work(run, driver)
    cluster.kill_node(first)
    cluster.add_node()
    driver.wait(0)
    say(f"a node with {len(lost)} processes; {run.prove_nothing_lost(UNITS_IN_FLIGHT * len(lost))}")
    assert driver.summary()[2] == 0, "an innocent row was given up"
