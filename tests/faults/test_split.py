"""Draft actors that are killed and frozen in the midst of runs on a cluster; runs that change their placement."""

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.cluster import RayCluster
from tests.faults.diary import is_alive
from tests.faults.runs import (
    NUM_ACTORS,
    UNITS_IN_FLIGHT,
    Corpus,
    Driver,
    FaultRun,
    NewRun,
    read_columns,
    undisturbed,
)
from tests.faults.strikes import kill
from tests.jobs.runs import prompts, write_jsonl

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]
Corpora = Callable[[str], Corpus]
_COUNTS = ["num_output_tokens", "num_accepted_tokens"]
NUM_KILLS = 6  # of each run
LEAST_TOKENS = 13_000
COLOCATED = ("--sampling.max_tokens=96", "--sampling.n=2", "--sampling.ignore_eos", "--engine.draft_length=fixed")
SPLIT = ("--placement=split", "--drafts.num_cpus=0.5", "--drafts.timeout_s=5")
SHARED, TWO_EACH = "--drafts.per_target=0.5", "--drafts.per_target=2"


@pytest.fixture(scope="module")
def corpora(ray_address: str, text_pair: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Corpora:
    """72 rows in 36 units, one of which is bad, and what a colocated run writes, by temperature."""
    made: dict[str, Corpus] = {}

    def corpus(temperature: str) -> Corpus:
        if temperature not in made:
            folder = tmp_path_factory.mktemp("colocated")
            rows = [*prompts(71), {"id": "bad", "kind": "a"}]
            source = write_jsonl(folder / "in.jsonl", rows)
            flags = (*COLOCATED, f"--sampling.temperature={temperature}")
            made[temperature] = undisturbed(source, folder / "out", text_pair, *flags)
        return made[temperature]

    return corpus


@pytest.fixture
def new_split_run(new_run: NewRun, corpora: Corpora) -> Callable[..., FaultRun]:
    def make(temperature: str, *flags: str) -> FaultRun:
        return new_run(*COLOCATED, f"--sampling.temperature={temperature}", *flags, over=corpora(temperature))

    return make


@pytest.mark.parametrize("temperature", ["0", "0.8"])
def test_draft_actors_that_are_killed_change_no_token(cluster, new_split_run, temperature, say):
    run = new_split_run(temperature, *SPLIT, SHARED)
    driver = run.start(pause_s=9.0)
    rng, killed = random.Random(int(float(temperature) * 10)), set[int]()
    for _ in range(NUM_KILLS):
        victim = next_draft_actor(cluster, driver, killed)
        num_entries = len(run.diary.entries()) + rng.randint(0, 2)
        driver.wait_until(lambda least=num_entries: len(run.diary.entries()) >= least)
        kill(victim)
        killed.add(victim)
    driver.wait(0)
    proof = run.prove_nothing_lost(0)
    assert driver.summary() == (0, 0, 0), "no generator died"
    num_tokens, num_accepted = tokens_of(run)
    say(f"{NUM_KILLS} draft actors killed, {num_tokens} tokens the same, {num_accepted} of them drafted; {proof}")
    assert num_tokens >= LEAST_TOKENS
    assert num_accepted > 0


def test_a_frozen_draft_actor_of_two_holds_up_nothing(cluster, new_split_run, say):
    run = new_split_run("0.8", *SPLIT, TWO_EACH, "--actors.min_actors=1", "--actors.max_actors=1")
    driver = run.start(pause_s=1.0)
    driver.wait_until(lambda: len(draft_actors(cluster)) == 2)
    run.wait_for_commits(4, driver)
    frozen = min(draft_actors(cluster))
    os.kill(frozen, signal.SIGSTOP)
    try:
        run.wait_for_commits(24, driver)
    finally:
        if is_alive(frozen):
            os.kill(frozen, signal.SIGCONT)
    driver.wait(0)
    proof = run.prove_nothing_lost(0)
    say(f"one of two draft actors frozen over 20 units; {tokens_of(run)[0]} tokens the same; {proof}")


def test_a_run_that_dies_split_goes_on_colocated_and_the_other_way_round(new_split_run, say):
    run = new_split_run("0.8", *SPLIT, SHARED)
    driver = run.start(pause_s=1.0)
    run.wait_for_commits(8, driver)
    driver.kill()
    run.flags = tuple(flag for flag in run.flags if flag not in (*SPLIT, SHARED))
    driver = run.start(pause_s=1.0)
    run.wait_for_commits(20, driver)
    driver.kill()
    run.flags = (*run.flags, *SPLIT, TWO_EACH)
    run.start(pause_s=0.1).wait(0)
    assert run.directory.run["settings"]["placement"] == "split"
    say(f"split, colocated, split: {run.prove_nothing_lost(2 * UNITS_IN_FLIGHT * NUM_ACTORS)}")


def draft_actors(cluster: RayCluster, node: str | None = None) -> set[int]:
    """The living processes of draft actors on the cluster's nodes, or on one of them."""
    raylets, found = {raylet for each, raylet in cluster.workers.items() if node in (None, each)}, set[int]()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            title = (folder / "cmdline").read_bytes()
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        if title.startswith(b"ray::DraftActor") and parent in raylets and is_alive(int(folder.name)):
            found.add(int(folder.name))
    return found


def next_draft_actor(cluster: RayCluster, driver: Driver, killed: set[int]) -> int:
    """A draft actor that was not killed yet, as soon as there is one."""
    return min(driver.wait_until(lambda: draft_actors(cluster) - killed))


def tokens_of(run: FaultRun) -> tuple[int, int]:
    """Output tokens of a run, and how many of them had been drafted."""
    num_tokens, num_accepted = zip(*read_columns(run.directory, "data", *_COUNTS), strict=True)
    return sum(num_tokens), sum(num_accepted)
