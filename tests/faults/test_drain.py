"""Nodes that are about to go, as spot machines are: the cluster is told 30 s before, by the real `ray drain-node`."""

import json
from typing import Any

import httpx2
import pytest

from tests.endpoint.on_serve.command import free_port, ready
from tests.endpoint.on_serve.test_command import command
from tests.endpoint.web import ask
from tests.faults.cluster import running_cluster
from tests.faults.diary import is_alive
from tests.faults.runs import PATIENCE_S, UNITS_IN_FLIGHT
from tests.faults.strikes import wait_for_work
from tests.faults.test_split import SPLIT, draft_actors
from tests.faults.test_split import corpora as corpora
from tests.faults.test_split import new_split_run as new_split_run
from tests.jobs.runs import wait_until

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]
ONE_ON_A_NODE = "--actors.num_cpus=2"


def test_a_node_that_drains_is_rid_of_its_units_before_it_goes_and_begins_none(cluster, new_run, say):
    run = new_run(ONE_ON_A_NODE)
    driver = run.start(pause_s=3.0)
    driver.wait_until(lambda: len(set(run.diary.processes().values())) == 2)
    leaving, (process,) = wait_for_work(run, driver)
    cluster.drain_node(leaving)
    held = run.diary.in_flight()[process]

    def begun_there() -> set[int]:
        return {each.unit for each in run.diary.entries() if each.what == "attempt" and each.node == leaving}

    driver.wait_until(lambda: not run.diary.in_flight().get(process))  # done in time, or begun by another
    begun = begun_there()
    assert is_alive(cluster.workers[leaving]), "it had units until it was gone"
    cluster.kill_node(leaving)
    cluster.add_node()
    driver.wait(0)
    assert begun_there() == begun, "it began a unit though it was about to go"
    say(f"a node drained with {len(held)} units; {run.prove_nothing_lost(2 * UNITS_IN_FLIGHT)}")
    assert driver.summary()[0] == 0, "its end was held against a row"


def test_the_draft_actors_of_a_node_that_drains_move_before_it_goes(cluster, new_split_run, say):
    run = new_split_run("0.8", *SPLIT)
    driver = run.start(pause_s=4.0)
    driver.wait_until(lambda: len(draft_actors(cluster)) == 2)
    run.wait_for_commits(2, driver)
    leaving = next(node for node in cluster.workers if draft_actors(cluster, node))
    moving = draft_actors(cluster, leaving)
    cluster.drain_node(leaving)
    driver.wait_until(lambda: not moving & draft_actors(cluster))
    assert is_alive(cluster.workers[leaving]), "they went with their node"
    assert len(draft_actors(cluster)) >= len(moving)
    cluster.kill_node(leaving)
    cluster.add_node()
    driver.wait(0)
    say(f"{len(moving)} draft actors moved; {run.prove_nothing_lost(2 * UNITS_IN_FLIGHT)}")


def test_an_endpoint_moves_the_engine_of_a_node_that_drains_and_answers_all_the_while(text_pair):
    port = free_port()
    body: dict[str, Any] = {"model": "target", "prompt": "hello", "seed": 5, "max_tokens": 60, "ignore_eos": True}
    with running_cluster() as cluster:
        cluster.grow_to(3)  # two engines, and room for one that moves
        flags = (f"--serve.ray_address={cluster.address}", f"--serve.port={port}", "--serve.num_cpus=2")
        flags += (f"--models.draft={text_pair[1]}", "--engine.max_model_len=250", "--serve.drain_timeout_s=10")
        flags += ("--serve.min_replicas=2", "--serve.max_replicas=2")
        with ready(command(text_pair[0], *flags), cluster.environment):
            answers = [ask(port, "/v1/completions", body)]
            leaving, _ = engine_nodes(cluster.dashboard)
            cluster.drain_node(leaving, notice_s=60)

            def has_moved() -> bool:
                answers.append(ask(port, "/v1/completions", body))
                nodes = engine_nodes(cluster.dashboard)
                return len(nodes) == 2 and leaving not in nodes

            wait_until(has_moved, PATIENCE_S, every_s=0.1)
            assert is_alive(cluster.workers[leaving]), "it went with its node"
    assert {each.status for each in answers} == {200}
    assert len({json.loads(each.body)["choices"][0]["text"] for each in answers}) == 1


def engine_nodes(dashboard: str) -> list[str]:
    """The nodes of the engines that Serve takes for running, as the dashboard at this host:port shows them."""
    applications = httpx2.get(f"http://{dashboard}/api/serve/applications/", timeout=60).json()["applications"]
    deployments = applications["dray"]["deployments"]
    return [each["node_id"] for each in deployments["Replica"]["replicas"] if each["state"] == "RUNNING"]
