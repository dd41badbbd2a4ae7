"""A pool, draft actors and an endpoint's engines that grow onto a host that joins, while the link of a host is cut."""

import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from threading import Event
from time import monotonic
from typing import Any

import openai
import pytest

from tests.endpoint.on_serve.command import ready
from tests.endpoint.on_serve.test_command import command, offline
from tests.faults.runs import NUM_ACTORS, PATIENCE_S, UNITS_IN_FLIGHT, FaultRun
from tests.faults.test_drain import engine_nodes
from tests.faults.test_split import tokens_of
from tests.jobs.runs import wait_until
from tests.network.cluster import NetworkCluster
from tests.network.hosts import Host

pytestmark = [pytest.mark.network, pytest.mark.slow, pytest.mark.timeout(900)]
CUT_S = 20
GROWS = ("--actors.min_actors=1", "--actors.max_actors=2", "--actors.num_cpus=1.5")  # an actor fills a host
SPLIT = ("--placement=split", "--drafts.num_cpus=0.25", "--drafts.start_timeout_s=1", "--engine.draft_length=fixed")
POOL_ACTOR, DRAFT_ACTOR, ENGINE = "ray::MapWorker", "ray::DraftActor", "ray::ServeReplica:dray:Replica"
PORT, NUM_CLIENTS, NUM_SEEDS = 8000, 6, 8
BODY: dict[str, Any] = {"prompt": "hello world", "max_tokens": 200}


@pytest.fixture
def joining(cluster: NetworkCluster) -> Host:
    """A host for work that is not in the cluster; `mend` adds it, as an autoscaler adds a node."""
    host = cluster.workers[1]
    cluster.end(host)
    return host


def run_while_growing(run: FaultRun, joining: Host, whose: str, what: str) -> None:
    """Do a run in which a host joins; once a process of this kind is started there, cut the link of `whose` host."""
    cluster, driver = run.cluster, run.start(pause_s=5.0)
    run.wait_for_commits(1, driver)
    cluster.mend()
    driver.wait_until(lambda: joining.processes(what), every_s=0.1)
    cluster.network.cut({"head": cluster.head, "worker": cluster.workers[0]}.get(whose, joining), CUT_S)
    driver.wait(0)
    nodes, done_on = cluster.nodes(), {each.node for each in run.diary.entries() if each.what == "committed"}
    assert joining.address in {nodes.get(node) for node in done_on}, "the pool did not grow"


@pytest.mark.parametrize("whose", ["worker", "head", "joining"])
def test_a_pool_that_grows_onto_a_host_while_a_link_is_cut_changes_nothing(whose, joining, new_run, say):
    run = new_run(*GROWS)
    run_while_growing(run, joining, whose, POOL_ACTOR)
    say(run.prove_nothing_lost(UNITS_IN_FLIGHT * NUM_ACTORS))


def test_draft_actors_that_come_with_a_host_while_the_engines_link_is_cut_change_nothing(joining, new_run, say):
    there = f'--drafts.resources={{"node:{joining.address}": 0.1}}'  # no draft actor has room before the host joins
    run = new_run(*GROWS, *SPLIT, there)
    run_while_growing(run, joining, "worker", DRAFT_ACTOR)
    proof = run.prove_nothing_lost(UNITS_IN_FLIGHT * NUM_ACTORS)
    num_tokens, num_accepted = tokens_of(run)
    say(f"{num_accepted} of {num_tokens} tokens were drafted; {proof}")
    assert num_accepted > 0, "no draft came from the new host"


@pytest.fixture
def serving(cluster: NetworkCluster, joining: Host, text_pair: tuple[str, str]) -> Iterator[openai.OpenAI]:
    """The official client, as it is, of an endpoint on the head that grows from one engine to two, one on a host."""
    flags = [f"--models.draft={text_pair[1]}", "--engine.max_model_len=250", f"--serve.ray_address={cluster.address}"]
    flags += ["--serve.host=0.0.0.0", f"--serve.port={PORT}", "--serve.max_replicas=2", "--serve.num_cpus=2"]
    flags += ["--serve.target_ongoing_requests=1", "--serve.upscale_delay_s=1"]
    try:
        with ready(cluster.driver_command(command(text_pair[0], *flags)), cluster.environment):
            yield openai.OpenAI(base_url=f"http://{cluster.head.address}:{PORT}/v1", api_key="any")
    finally:
        address = f"http://{cluster.dashboard}"
        subprocess.run(["serve", "shutdown", "--yes", "--address", address], check=True, env=cluster.environment)


@contextmanager
def asked_all_the_while(client: openai.OpenAI) -> Iterator[list[tuple[int, str, float]]]:
    """Ask as several clients do, as long as the block runs; yield the seeds, texts and seconds of all requests."""
    is_over, answers = Event(), list[tuple[int, str, float]]()

    def ask(first: int) -> None:
        for seed in count(first):
            began = monotonic()
            more = {"seed": seed % NUM_SEEDS, "extra_body": {"ignore_eos": True}}
            answer = client.completions.create(model="target", **BODY, **more)
            answers.append((seed % NUM_SEEDS, answer.choices[0].text, monotonic() - began))
            if is_over.is_set():
                return

    with ThreadPoolExecutor(NUM_CLIENTS) as pool:
        clients = [pool.submit(ask, first) for first in range(NUM_CLIENTS)]
        try:
            yield answers
        finally:
            is_over.set()
    for each in clients:
        each.result()  # raises what the client raised over a request that it gave up


@pytest.mark.parametrize("moment", ["starts", "has begun"])
def test_an_endpoint_that_grows_onto_a_host_whose_link_is_cut_loses_no_request(
    moment, cluster, joining, serving, text_pair, say
):
    def has_grown() -> bool:
        return len(engine_nodes(cluster.dashboard)) == 2

    is_time: Callable[[], Any] = {"starts": lambda: joining.processes(ENGINE), "has begun": has_grown}[moment]
    with asked_all_the_while(serving) as answers:
        wait_until(lambda: len(answers) > NUM_SEEDS, PATIENCE_S)
        cluster.mend()
        wait_until(is_time, PATIENCE_S, every_s=0.2)
        num_before = len(answers)
        cluster.network.cut(joining, CUT_S)
        num_then = len(answers)
        wait_until(has_grown, PATIENCE_S, every_s=0.2)
        num_after = len(answers)
        wait_until(lambda: len(answers) > num_after + 5 * NUM_CLIENTS, PATIENCE_S)
    texts = offline(text_pair, [{**BODY, "seed": seed, "ignore_eos": True} for seed in range(NUM_SEEDS)])
    assert [text for _, text, _ in answers] == [texts[seed] for seed, _, _ in answers]
    slowest_s = max(seconds for _, _, seconds in answers)
    say(f"{len(answers)} answers, {num_then - num_before} in the cut, the slowest after {slowest_s:.0f} s")
