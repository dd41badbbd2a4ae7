"""A unit is committed whole, once, even if other processes try as well and some die."""

import errno
import json
import multiprocessing
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.run.check import check_run
from pipeline.run.commit import commit_part, read_receipt
from pipeline.run.directory import RunDirectory
from pipeline.schema import errors_schema, generations_schema
from tests.pipeline.made_up import RUN, commit_rows, error, exit_code_of, generations, sound_rows, unit

WHOLE = sound_rows(unit(), [0, 1, 2])


@pytest.fixture
def run_directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(str(tmp_path / "run"), RUN, [unit()])


def test_a_committed_part_holds_the_rows_and_the_receipt(run_directory):
    receipt = commit_rows(run_directory, unit(), WHOLE, [])
    assert not receipt.already_committed
    table = pq.read_table(run_directory.part_path(0).path)
    assert table.to_pylist() == WHOLE
    assert json.loads((table.schema.metadata or {})[b"dray"])["counts"]["num_generations"] == 6
    assert read_receipt(run_directory, 0) == receipt
    assert not run_directory.errors_path(0).exists()


def test_a_second_attempt_does_not_replace_the_part_and_reports_the_first_ones_counts(anywhere):
    run_directory = RunDirectory.create(anywhere, RUN, [unit()])
    first = commit_rows(run_directory, unit(), WHOLE, [])
    content = run_directory.part_path(0).read_bytes()
    second = commit_rows(run_directory, unit(), sound_rows(unit(), [0, 1]), [error(unit(), 2)])
    assert second.already_committed
    assert second.counts == first.counts
    assert run_directory.part_path(0).read_bytes() == content
    assert not run_directory.errors_path(0).exists()
    assert check_run(run_directory).is_complete


def test_a_unit_whose_rows_all_failed_has_a_part_without_rows(run_directory):
    receipt = commit_rows(run_directory, unit(), [], [error(unit(), index) for index in range(3)])
    assert pq.read_table(run_directory.part_path(0).path).num_rows == 0
    assert (receipt.counts.num_rows, receipt.counts.num_errors) == (3, 3)
    assert check_run(run_directory).is_complete


def test_a_commit_with_missing_rows_fails_an_assertion(run_directory):
    with pytest.raises(AssertionError, match="rows in must equal rows out"):
        commit_rows(run_directory, unit(), sound_rows(unit(), [0, 1]), [])


@pytest.mark.parametrize("second_fails", [True, False])
def test_errors_of_an_attempt_that_died_before_its_part_do_not_survive(run_directory, monkeypatch, second_fails):
    def die(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "disk full")

    with monkeypatch.context() as patch:
        patch.setattr("pipeline.storage.whole_file.os.link", die)
        with pytest.raises(OSError, match="disk full"):
            commit_rows(run_directory, unit(), sound_rows(unit(), [0]), [error(unit(), 1), error(unit(), 2)])
    assert run_directory.errors_path(0).exists()
    assert run_directory.committed_unit_ids() == set()
    if second_fails:
        commit_rows(run_directory, unit(), sound_rows(unit(), [0, 2]), [error(unit(), 1)])
    else:
        commit_rows(run_directory, unit(), WHOLE, [])
    assert run_directory.errors_path(0).exists() == second_fails
    report = check_run(run_directory)
    assert report.problems == report.notes == []


def test_without_hard_links_a_commit_is_a_rename(run_directory, monkeypatch):
    def refuse(*_: Any) -> None:
        raise OSError(errno.EPERM, "not permitted")

    monkeypatch.setattr("pipeline.storage.whole_file.os.link", refuse)
    commit_rows(run_directory, unit(), WHOLE, [])
    assert check_run(run_directory).problems == []


def _race(path: str, attempt: int, barrier: Any, results: Any) -> None:
    """Commit units 0-19, each at the same time as the other process; attempts disagree on which row failed."""
    run_directory = RunDirectory.open(path)
    for unit_id in range(20):
        work_unit = unit(unit_id)
        failed = attempt if unit_id % 2 else None
        rows = [row for row in sound_rows(work_unit, [0, 1, 2]) if row["row_id"] & 0xFF != failed]
        errors = [] if failed is None else [error(work_unit, failed)]
        if attempt == 1 and unit_id % 4 == 1:
            rows, errors = sound_rows(work_unit, [0, 1, 2]), []
        barrier.wait(20)
        results.put((unit_id, commit_rows(run_directory, work_unit, rows, errors).already_committed))


def test_of_two_processes_that_commit_a_unit_one_wins_and_its_errors_fit_its_part(tmp_path):
    run_directory = RunDirectory.create(str(tmp_path), RUN, [unit(i) for i in range(20)])
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(2), context.Queue()
    processes = [context.Process(target=_race, args=(str(tmp_path), attempt, barrier, results)) for attempt in (0, 1)]
    for process in processes:
        process.start()
    outcomes = sorted(results.get(timeout=30) for _ in range(40))
    for process in processes:
        process.join(30)
    assert outcomes == [(unit_id, lost) for unit_id in range(20) for lost in (False, True)]
    report = check_run(run_directory)
    assert report.problems == report.notes == []
    assert report.counts.num_rows == 60


def _die_at(step: str, path: str) -> None:
    """Commit unit 0 and exit at once when `step` is reached."""
    import pipeline.storage.whole_file as whole_file

    def die(*_: Any, **__: Any) -> None:
        os._exit(9)

    setattr(whole_file.os, step, die)
    commit_rows(RunDirectory.open(path), unit(), sound_rows(unit(), [0, 2]), [error(unit(), 1)])


@pytest.mark.parametrize("step", ["replace", "link", "unlink"])
def test_a_process_killed_at_any_step_of_a_commit_leaves_all_or_nothing(run_directory, step):
    assert exit_code_of(_die_at, step, run_directory.location.path) == 9
    assert run_directory.committed_unit_ids() == ({0} if step == "unlink" else set())
    commit_rows(run_directory, unit(), sound_rows(unit(), [0, 2]), [error(unit(), 1)])
    report = check_run(run_directory)
    assert report.problems == []
    assert len(report.notes) == 1  # the temporary file is mentioned


def test_reading_the_receipt_of_a_damaged_part_names_the_file(run_directory):
    commit_rows(run_directory, unit(), WHOLE, [])
    part = Path(run_directory.part_path(0).path)
    part.write_bytes(part.read_bytes()[:-5])
    with pytest.raises(ValueError, match=r"part-000000000\.parquet: not a part of a run, or damaged"):
        read_receipt(run_directory, 0)
    pq.write_table(pa.table({"a": [1]}), part)
    with pytest.raises(ValueError, match="not a part of a run"):
        read_receipt(run_directory, 0)


def test_carried_columns_follow_the_own_columns():
    assert generations_schema({"score": pa.float64()}).names[-2:] == ["draft_version", "score"]


def test_a_part_describes_the_engine_that_generated_it(run_directory):
    rows = generations(sound_rows(unit(), [0, 1, 2]))
    facts = {"device": "cpu", "is_batch_invariant": True}
    no_errors = errors_schema().empty_table()
    commit_part(run_directory, unit(), rows, no_errors, attempt=0, engine=facts)
    footer = json.loads((pq.read_schema(run_directory.part_path(0).path).metadata or {})[b"dray"])
    assert footer["engine"] == facts
    assert check_run(run_directory).is_complete
