"""Worker processes that are killed, frozen or poisoned in the midst of a run on a cluster."""

import os
import signal
from typing import Any

import psutil
import pytest

from pipeline.run.check import check_run
from pipeline.run.directory import RunDirectory
from tests.faults.diary import Entry, is_alive
from tests.faults.runs import (
    NUM_ACTORS,
    PATIENCE_S,
    UNITS_IN_FLIGHT,
    FaultRun,
    read_errors,
    read_tokens,
    undisturbed,
)
from tests.faults.strikes import kill, kill_random_workers, wait_for_work
from tests.jobs.runs import prompts, wait_until, write_jsonl

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]
NUM_KILLS = 6


@pytest.mark.parametrize("seed", range(5))
def test_processes_that_are_killed_at_random_moments_change_nothing(seed, new_run, say):
    run = new_run()
    driver = run.start()
    in_flight = kill_random_workers(run, driver, seed, NUM_KILLS)
    driver.wait(0)
    say(f"{NUM_KILLS} kills over {in_flight} units; {run.prove_nothing_lost(UNITS_IN_FLIGHT * NUM_KILLS)}")
    assert driver.summary()[2] == 0, "an innocent row was given up"


def test_rows_that_kill_their_process_in_several_units_at_once_are_the_only_ones_given_up(
    new_run, text_pair, tmp_path, say
):
    rows: list[dict[str, Any]] = prompts(32)
    killers = {1: (0, 1), 11: (2, 3), 22: (5, 2)}  # row -> its unit of four rows, and its place there
    for row in killers:
        rows[row] = {"id": rows[row]["id"], "kind": "killer", "prompt": "hello poison"}
    rows[30] = {"id": "bad", "kind": "a"}
    source, flag = write_jsonl(tmp_path / "in.jsonl", rows), "--run.rows_per_unit=4"
    run = new_run(flag, over=undisturbed(source, tmp_path / "healthy", text_pair, flag))
    run.start("poisoned", word="poison").wait(0)
    given_up = {unit << 32 | place for unit, place in killers.values()}
    errors = {row_id: (stage, kind) for row_id, stage, kind in read_errors(run.directory)}
    assert errors == dict.fromkeys(given_up, ("generate", "WorkerDied")) | {7 << 32 | 2: ("read", "KeyError")}
    healthy = read_tokens(RunDirectory.open(str(tmp_path / "healthy")))
    assert read_tokens(run.directory) == {key: tokens for key, tokens in healthy.items() if key[0] not in given_up}
    assert check_run(run.directory).problems == []
    deaths, repeated, num_given_up = run.drivers[-1].summary()
    assert num_given_up == len(killers)
    assert repeated <= UNITS_IN_FLIGHT * 5 * len(killers)
    run.prove_nothing_left()
    say(f"{num_given_up} rows given up after {deaths} deaths over units, {repeated} attempts repeated")


def test_a_frozen_node_that_wakes_up_after_it_was_replaced_does_no_harm(cluster, new_run, say):
    run = new_run()
    driver = run.start()
    node, zombies = wait_for_work(run, driver)
    raylet = cluster.workers[node]
    for pid in (*zombies, raylet):
        os.kill(pid, signal.SIGSTOP)
    units = set().union(*(run.diary.in_flight().get(pid, set()) for pid in zombies))
    assert units

    def is_replaced() -> bool:
        again = {entry.unit for entry in run.diary.entries() if entry.what == "attempt" and entry.pid not in zombies}
        return units <= again

    driver.wait_until(is_replaced)
    num_entries = len(_entries_of(zombies, run))
    for pid in zombies:
        os.kill(pid, signal.SIGCONT)  # before its raylet, which then learns that it was declared dead

    def has_gone_on() -> bool:
        return len(_entries_of(zombies, run)) > num_entries or not any(map(is_alive, zombies)) or driver.has_ended

    wait_until(has_gone_on, PATIENCE_S)
    num_after = len(_entries_of(zombies, run)) - num_entries
    os.kill(raylet, signal.SIGCONT)
    driver.wait(0)
    cluster.kill_node(node)
    # What was queued for the zombie it may have begun, too, before its raylet took it along.
    allowed = 2 * UNITS_IN_FLIGHT * len(zombies)
    say(f"{len(zombies)} zombies did {num_after} things after they woke up; {run.prove_nothing_lost(allowed)}")


def test_a_run_whose_processes_freeze_fails_when_nothing_is_committed_and_goes_on_when_it_is_run_again(new_run, say):
    run = new_run("--run.no_progress_timeout_s=45")
    driver = run.start()
    run.wait_for_commits(3, driver)
    frozen = set(run.diary.processes())
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    driver.wait(1)
    assert "error: no unit was committed for run.no_progress_timeout_s" in driver.said()
    assert "what is committed stays; mend the cause and run the same command again" in driver.said()
    wait_until(lambda: not any(map(is_alive, frozen)), PATIENCE_S)  # their driver takes them along
    run.start().wait(0)
    say(f"{len(frozen)} processes frozen; {run.prove_nothing_lost(UNITS_IN_FLIGHT * NUM_ACTORS)}")


def test_a_frozen_process_is_not_waited_for_as_idle_actors_take_copies_of_its_units(new_run, say):
    run = new_run("--run.backup_units")
    driver = run.start()
    frozen = next(iter(driver.wait_until(run.diary.in_flight)))
    os.kill(frozen, signal.SIGSTOP)
    driver.wait(0)
    say(run.prove_nothing_lost(2 * UNITS_IN_FLIGHT * NUM_ACTORS))
    wait_until(lambda: not is_alive(frozen), PATIENCE_S)  # its run takes it along


def _entries_of(pids: set[int], run: FaultRun) -> list[Entry]:
    return [entry for entry in run.diary.entries() if entry.pid in pids]


def test_a_run_whose_ledger_is_killed_ends_and_goes_on_by_the_same_command(cluster, new_run, say):
    run = new_run()
    driver = run.start(pause_s=1.0)
    run.wait_for_commits(3, driver)
    of_cluster = psutil.Process(cluster._server.pid).children(recursive=True)
    (ledger,) = [each.pid for each in of_cluster if each.cmdline()[:1] == ["ray::RunLedger"]]
    kill(ledger)
    driver.wait(1)
    assert "error: this run's ledger, a process beside the driver, has died" in driver.said()
    assert "run the same command again" in driver.said()
    run.start().wait(0)
    say(run.prove_nothing_lost(NUM_ACTORS * UNITS_IN_FLIGHT))
