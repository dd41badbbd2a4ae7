"""Nodes of a run: killed, coming back, and of several kinds."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.faults.cluster import RayCluster
from tests.faults.runs import UNITS_IN_FLIGHT, FaultRun
from tests.faults.strikes import wait_for_work

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]


def test_nodes_that_are_killed_one_after_the_other_and_one_that_comes_back_change_nothing(cluster, new_run, say):
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
    assert returned in nodes, "the node that came back did no work, though no other node was left"
    num_lost = len(lost) + len(lost_then)
    say(f"2 nodes with {num_lost} processes; {run.prove_nothing_lost(UNITS_IN_FLIGHT * num_lost)}")
    deaths, _, given_up = driver.summary()
    assert (deaths, given_up) == (0, 0), "the death of a node was held against a row"


def test_a_node_that_is_killed_while_an_actor_is_started_on_it_changes_nothing(cluster, new_run, say):
    run = new_run()
    driver = run.start(pause_s=1.0)
    run.wait_for_commits(1, driver)
    for _ in range(2):
        at_work, _ = wait_for_work(run, driver)
        num_loads = len(loads(run))
        cluster.kill_node(at_work)  # its actors are started again, here or there
        cluster.grow_to(2)
        driver.wait_until(lambda first=num_loads: nodes_that_load(run, cluster, first), every_s=0.05)
        cluster.kill_node(nodes_that_load(run, cluster, num_loads)[-1])
        cluster.grow_to(2)
    driver.wait(0)
    say(f"4 nodes, two of which were starting an actor; {run.prove_nothing_lost(UNITS_IN_FLIGHT * 8)}")
    assert driver.summary()[2] == 0, "an innocent row was given up"


def loads(run: FaultRun) -> list[str]:
    """The nodes where actors began to load their models, in order."""
    return [entry.node for entry in run.diary.entries() if entry.what == "loading"]


def nodes_that_load(run: FaultRun, cluster: RayCluster, first: int) -> list[str]:
    """The living nodes among those of the loads from number `first` on; the node that was killed may have begun one."""
    return [node for node in loads(run)[first:] if node in cluster.workers]


def test_nodes_with_stages_of_a_target_that_are_killed_change_nothing(cluster, new_run, say):
    run = new_run("--stages.count=2", "--stages.num_cpus=0.1", "--stages.strategy=SPREAD")
    driver = run.start(pause_s=3.0)
    first, lost = wait_for_work(run, driver)
    cluster.kill_node(first)
    cluster.add_node()
    driver.wait(0)
    say(f"a node with {len(lost)} processes; {run.prove_nothing_lost(UNITS_IN_FLIGHT * len(lost))}")
    assert driver.summary()[2] == 0, "an innocent row was given up"


KINDS: dict[str, tuple[str, dict[str, Any]]] = {  # what the pool asks for, and the node that has it
    "label_selector": ('{"pool": "fast"}', {"labels": {"pool": "fast"}}),
    "accelerator_type": ("T4", {"resources": {"accelerator_type:T4": 1}}),
    "resources": ('{"licence": 1}', {"resources": {"licence": 2}}),
}


class Kind(NamedTuple):
    """A flag that asks for nodes of a kind, and the one that is."""

    flag: str
    node: str


@pytest.fixture
def kind(request: pytest.FixtureRequest, cluster: RayCluster) -> Iterator[Kind]:
    """A node of its own kind, beside the usual ones."""
    name = request.param
    value, node = KINDS[name]
    node_id = cluster.add_node(**node)
    yield Kind(f"--actors.{name}={value}", node_id)
    cluster.kill_node(node_id)


@pytest.mark.parametrize("kind", list(KINDS), indirect=True)
def test_units_run_only_on_nodes_of_the_kind_that_is_asked_for(kind, new_run, say):
    run = new_run(kind.flag)
    run.start(pause_s=0.1).wait(0)
    assert {entry.node for entry in run.diary.entries()} == {kind.node}
    say(run.prove_nothing_lost(0))
