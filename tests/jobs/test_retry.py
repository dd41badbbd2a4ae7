"""`jobs.retry`: failed rows become what a first success would have written, and nothing else changes."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jobs import generate, verify
from jobs.driver import execution
from pipeline.run.directory import RunDirectory
from pipeline.run.progress.lease import hold_lease
from tests.jobs.conftest import Job
from tests.jobs.faulty import RETRY_POINTS, dies_over, fails_over, retry_dies_at_every_point
from tests.jobs.runs import arguments, commits, content, errors, generations, problems, prompts, wait_until, write_jsonl

pytestmark = pytest.mark.usefixtures("local")
Pair = tuple[str, str]
FLAGS = ("--sampling.n=2", "--run.seed=3", "--run.max_error_rate=1")
LOCAL = "--run.local"


def input_rows() -> list[Any]:
    """Return 28 rows for units of 8: unit 0 has one unlucky row, unit 2 two; unit 1 has two bad rows, unit 2 one."""
    rows: list[Any] = prompts(28)
    for index in (2, 17, 19):
        rows[index] = {"id": f"row-{index}", "kind": "a", "prompt": f"unlucky hello {index}"}
    rows[9] = "{not json"
    rows[12] = {"id": "empty", "kind": "a", "prompt": ""}
    rows[20] = {"id": "no-prompt", "kind": "a"}
    return rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, text_pair: Pair) -> Path:
    """Return a folder with in.jsonl, the run undisturbed/ and the run failed/, in which three unlucky rows failed."""
    folder = tmp_path_factory.mktemp("retry")
    source = write_jsonl(folder / "in.jsonl", input_rows())
    assert generate.main(arguments(source, folder / "undisturbed", text_pair, *FLAGS, LOCAL)) == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execution, "EngineWorker", fails_over("unlucky"))
        assert generate.main(arguments(source, folder / "failed", text_pair, *FLAGS, LOCAL)) == 0
    failed = [row["id"] for row in errors(folder / "failed")]
    assert failed == ["row-2", None, "empty", "row-17", "row-19", "no-prompt"]
    return folder


@pytest.fixture
def failed(folder: Path, job: Job) -> Job:
    """Return a copy of the run in which rows failed."""
    job.source = folder / "in.jsonl"
    shutil.copytree(folder / "failed", job.output)
    return job


def rows_without_counts_of_work(output: Path) -> list[dict[str, Any]]:
    """Return what the target wrote, without drafts and rounds, which depend on the other rows of the batch."""
    work = ["num_rounds", "num_draft_tokens", "num_accepted_tokens", "accepted_per_position", "num_cached_tokens"]
    work.append("draft_rounds")
    return [{name: value for name, value in row.items() if name not in work} for row in generations(output)]


def test_retried_rows_equal_those_of_a_run_without_failures(folder, failed):
    output, before = failed.output, commits(failed.output)
    changed = ("--engine.num_slots=3", "--actors.units_in_flight=1", "--engine.drafter=ngram")
    assert failed.retry(*FLAGS, "--stage=generate", "--stage=read", *changed) == 0
    assert "retried: 5 rows; now succeed: 3; still fail: 2" in failed.printed()
    assert content(output) == content(folder / "undisturbed")
    assert rows_without_counts_of_work(output) == rows_without_counts_of_work(folder / "undisturbed")
    assert [(row["id"], row["stage"], row["attempt"]) for row in errors(output)] == [
        (None, "read", 1),
        ("empty", "encode", 0),
        ("no-prompt", "read", 1),
    ]
    after = commits(output)
    changed_parts = {name for name in before if before[name] != after[name]}
    assert changed_parts == {"part-000000000.parquet", "part-000000002.parquet"}
    assert problems(output) == []
    assert (output / "_SUCCESS").exists()
    report = json.loads((output / "report.json").read_text())
    assert (report["complete"], report["counts"]["num_errors"], report["counts"]["num_rows"]) == (True, 3, 28)
    assert verify.main([str(output)]) == 0

    assert failed.generate(*FLAGS) == 0
    assert commits(output) == after
    assert "Nothing left to do" in failed.printed()
    (output / "_SUCCESS").unlink()
    assert failed.generate(*FLAGS) == 0
    assert commits(output) == after


def test_a_dry_run_lists_what_failed_and_writes_nothing(failed):
    before = {path: path.stat().st_mtime_ns for path in failed.output.rglob("*")}
    assert failed.retry(*FLAGS, "--dry-run", "--error-type", "KeyError") == 0
    printed = failed.printed()
    assert "no luck" in printed
    assert "JSONDecodeError" in printed
    assert "6 rows failed; 1 of them, in 1 units, would be tried again" in printed
    assert {path: path.stat().st_mtime_ns for path in failed.output.rglob("*")} == before


def test_nothing_happens_if_no_failed_row_matches(failed):
    before = commits(failed.output)
    assert failed.retry(*FLAGS, "--error_type=WorkerDied") == 0
    assert "Nothing to try again: none of the failed rows is asked for." in failed.printed()
    assert commits(failed.output) == before
    assert (failed.output / "_SUCCESS").exists()


def test_a_run_without_success_mark_is_verified_even_if_no_row_matches(failed):
    success = failed.output / "_SUCCESS"
    success.unlink()
    assert failed.retry(*FLAGS, "--stage=params", "--run.max_error_rate=0.1") == 1
    assert "`dray retry` runs the failed rows again" in failed.printed()
    assert not success.exists()
    assert failed.retry(*FLAGS, "--stage=params") == 0
    assert success.exists()
    success.unlink()
    (failed.output / "data/part-000000003.parquet").unlink()
    assert failed.retry(*FLAGS, "--stage=params") == 3
    assert "1 units of the run were never finished: dray generate goes on" in failed.printed()
    assert not success.exists()


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--sampling.temperature=0.5", "  sampling.temperature: was 1.0, is 0.5"),
        ("--run.seed=4", "  seed: was 3, is 4"),
        ("--stage=reading", "stage.0: input should be 'read', 'template'"),
        ("--error_types=KeyError", "did you mean --error-type?"),
        ("--stages=read", "--stages is a section; set its fields, such as --stages.count"),
        ("--output.path=/nowhere/at/all", "no run here; dray generate makes one"),
    ],
)
def test_flags_that_would_change_tokens_or_make_no_sense_are_refused(failed, flag, message):
    before = commits(failed.output)
    assert failed.retry(*FLAGS, flag) == 2
    assert message in failed.printed()
    assert commits(failed.output) == before


def test_a_second_driver_and_a_damaged_errors_file_print_one_line_each(failed):
    with hold_lease(RunDirectory.open(str(failed.output))):
        assert failed.retry(*FLAGS) == 4
    assert "error: another driver works on this run" in failed.printed()
    part = failed.output / "errors/part-000000002.parquet"
    part.write_bytes(part.read_bytes()[:-3])
    assert failed.retry(*FLAGS) == 1
    assert "errors/part-000000002.parquet: damaged" in failed.printed()


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.usefixtures("ray_address")
def test_a_retry_that_dies_at_every_point_of_a_unit_changes_nothing(job, tmp_path, monkeypatch):
    num_units, deaths = len(RETRY_POINTS), tmp_path / "deaths"
    lucky = prompts(2)
    unlucky = [{"id": f"unlucky-{k}", "kind": "a", "prompt": f"unlucky hello {k}"} for k in range(num_units)]
    bad = [{"id": f"bad-{k}", "kind": "a"} for k in range(num_units)]
    job.read([row for k in range(num_units) for row in (*lucky, unlucky[k], bad[k])])
    flags = ("--run.rows_per_unit=4", "--actors.units_in_flight=1", "--engine.num_slots=1", "--run.max_error_rate=1")
    undisturbed = job.undisturbed(*flags)
    monkeypatch.setattr(execution, "EngineWorker", fails_over("unlucky"))
    assert job.generate(*flags) == 0
    assert len(errors(job.output)) == 2 * num_units
    deaths.mkdir()
    monkeypatch.setattr(execution, "EngineWorker", retry_dies_at_every_point(deaths))
    assert job.retry(*flags) == 0
    assert sorted(path.name for path in deaths.iterdir()) == sorted(f"{p} {k}" for k, p in enumerate(RETRY_POINTS))
    assert content(job.output) == content(undisturbed)
    assert [row["id"] for row in errors(job.output)] == [row["id"] for row in bad]
    assert problems(job.output) == []
    printed = job.printed()
    assert f"now succeed: {num_units}; still fail: {num_units}" in printed
    assert "worker processes died over units" in printed


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.usefixtures("ray_address")
def test_a_row_that_kills_its_process_stays_an_error_row_and_its_neighbours_come_through(folder, failed, monkeypatch):
    monkeypatch.setattr(execution, "EngineWorker", dies_over("unlucky hello 17"))
    assert failed.retry(*FLAGS) == 0
    dead = {row["id"]: (row["stage"], row["error_type"], row["attempt"]) for row in errors(failed.output)}
    assert dead["row-17"] == ("generate", "WorkerDied", 1)
    assert sorted(map(str, dead)) == ["None", "empty", "no-prompt", "row-17"]
    expected = [row for row in rows_without_counts_of_work(folder / "undisturbed") if row["id"] != "row-17"]
    assert rows_without_counts_of_work(failed.output) == expected
    assert problems(failed.output) == []
    monkeypatch.undo()
    assert failed.retry(*FLAGS, "--error-type=WorkerDied") == 0
    assert content(failed.output) == content(folder / "undisturbed")


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.usefixtures("ray_address")
def test_a_stopped_or_killed_retry_can_be_resumed(job, ray_address, monkeypatch):
    job.read([{"id": f"row-{k}", "kind": "a", "prompt": f"{'unlucky' if k % 2 else 'lucky'} {k}"} for k in range(96)])
    slow = ("--sampling.max_tokens=60", "--engine.num_slots=4", "--actors.units_in_flight=1", "--run.max_error_rate=1")
    undisturbed = job.undisturbed(*slow)
    with monkeypatch.context() as patch:
        patch.setattr(execution, "EngineWorker", fails_over("unlucky"))
        assert job.generate(*slow) == 0
    first = commits(job.output)
    command = [sys.executable, "-m", "jobs.retry", *job.command(*slow), f"--run.ray_address={ray_address}"]
    said = _begin_and_end(command, job.output, signal.SIGTERM, 3)
    assert "the same command goes on with what is left in errors/" in said
    assert list((job.output / "errors").iterdir()), "it was done before it could be stopped: make the run longer"
    _begin_and_end(command, job.output, signal.SIGKILL, -signal.SIGKILL)
    assert job.retry(*slow) == 0
    assert content(job.output) == content(undisturbed)
    assert errors(job.output) == []
    assert all(first[name] != commits(job.output)[name] for name in first)


def _begin_and_end(command: list[str], output: Path, sent: signal.Signals, code: int) -> str:
    """Return the stderr of a driver that gets a signal after its first unit and ends with this code."""
    num_left = len(list((output / "errors").iterdir()))
    driver = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: len(list((output / "errors").iterdir())) < num_left or driver.poll() is not None)
    os.kill(driver.pid, sent)
    _, said = driver.communicate(timeout=120)
    assert driver.returncode == code, said
    assert not (output / "_SUCCESS").exists()
    assert problems(output) == []
    return said
