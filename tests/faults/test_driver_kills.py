"""Drivers that are killed, beside workers and a node or several in a row, and the same command that goes on."""

import random
from pathlib import Path

import pytest

from pipeline.run.check import check_run
from tests.faults.runs import NUM_ACTORS, PATIENCE_S, UNITS_IN_FLIGHT, undisturbed
from tests.faults.strikes import kill_random_workers, wait_for_work
from tests.jobs.runs import errors, generations, prompts, wait_until, write_jsonl

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


def written(run: Path) -> tuple[list[object], list[object]]:
    """Return all that must come out again of a run with a check and earlier texts: of its rows, and of its errors."""
    row = ("row_id", "sample", "text", "token_ids", "finish_reason", "num_tries", "num_earlier_tokens")
    error = ("row_id", "stage", "error_type", "message", "text", "num_tries")
    return tuple(  # type: ignore[return-value]
        [[each[name] for name in names] for each in read(run)]
        for read, names in ((generations, (*row, "num_unchanged_tokens")), (errors, error))
    )


@pytest.mark.slow
def test_kills_at_random_moments_change_no_text_try_or_error_where_texts_are_checked_and_reused(
    new_run, text_pair, tmp_path, say
):
    rows = [*prompts(24), {"id": "bad", "kind": "a"}]
    source, sampling = write_jsonl(tmp_path / "in.jsonl", rows), ("--sampling.temperature=1", "--sampling.n=2")
    check = ("--run.validate.function=tests.jobs.some_checks:has_even_length", "--run.validate.max_tries=3")
    here = ("--run.local",)
    undisturbed(source, tmp_path / "old", text_pair, *sampling, "--sampling.max_tokens=8", pool=here)
    flags = (*sampling, *check, f"--run.reuse={tmp_path / 'old'}")
    unkilled = undisturbed(source, tmp_path / "unkilled", text_pair, *flags, pool=here)
    run, rng = new_run(*flags, over=unkilled), random.Random(7)
    driver = run.start()
    kill_random_workers(run, driver, seed=0, num_kills=1)
    run.wait_for_commits(rng.randint(1, 4), driver)
    driver.kill()
    before, driver = run.commits(), run.start()
    kill_random_workers(run, driver, seed=1, num_kills=1)
    driver.wait(0)
    assert before.items() <= run.commits().items(), "what was committed was generated again"
    assert written(tmp_path / "out") == written(tmp_path / "unkilled")
    texts, failed = generations(tmp_path / "out"), errors(tmp_path / "out")
    assert {row["num_tries"] for row in texts} == {1, 2, 3}
    assert {row["stage"] for row in failed} == {"read", "validate"}
    assert any(row["num_unchanged_tokens"] for row in texts), "an old text came out again"
    assert check_run(run.directory).problems == []
    say(f"2 workers, a driver killed; {run.prove_nothing_lost(UNITS_IN_FLIGHT * (2 + NUM_ACTORS))}")
