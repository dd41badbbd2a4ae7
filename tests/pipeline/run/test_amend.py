"""Rows whose retry succeeded move from a unit's error rows to its part, whichever process dies meanwhile."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.run import commit
from pipeline.run.check import check_run
from pipeline.run.commit import amend_part, read_receipt
from pipeline.run.directory import RunDirectory
from pipeline.run.fingerprint import content_hash
from pipeline.run.unit_rows import read_errors, read_unit_rows
from pipeline.storage import whole_file
from pipeline.storage.location import Location
from tests.pipeline.made_up import (
    RUN,
    commit_rows,
    error,
    exit_code_of,
    generation,
    generations,
    run_with_integer_ids,
    sound_rows,
    unit,
)

UNIT = unit(1)
STEPS = ("before part", "at part", "after part", "before errors", "at errors", "after errors")


def _run(path: str | Location, num_failed: int = 2) -> RunDirectory:
    """Make a run of 2 units with 3 rows each; the last rows of unit 1 failed."""
    run_directory = RunDirectory.create(path, RUN, [unit(0), UNIT])
    commit_rows(run_directory, unit(0), sound_rows(unit(0), [0, 1, 2]), [])
    sound, failed = [0, 1, 2][: 3 - num_failed], [0, 1, 2][3 - num_failed :]
    commit_rows(run_directory, UNIT, sound_rows(UNIT, sound), [error(UNIT, index) for index in failed])
    return run_directory


def _amend(run_directory: RunDirectory, through: list[int], again: list[int]) -> Any:
    rows = generations(sound_rows(UNIT, through))
    return amend_part(run_directory, UNIT, rows, [error(UNIT, index, "worse") for index in again])


def _errors(run_directory: RunDirectory) -> list[tuple[int, str, int]]:
    """Return (row in the unit, message, attempt) for each row of unit 1's errors file."""
    rows = read_errors(run_directory, 1).to_pylist()
    return [(UNIT.row_index(row["row_id"]), row["message"], row["attempt"]) for row in rows]


def _rows(run_directory: RunDirectory) -> list[tuple[int, int]]:
    """Return (row in the unit, sample) for each row of unit 1's part, in the order of the file."""
    table = pq.read_table(run_directory.part_path(1).path, columns=["row_id", "sample"])
    return [(UNIT.row_index(row["row_id"]), row["sample"]) for row in table.to_pylist()]


@pytest.fixture
def run_directory(tmp_path: Path) -> RunDirectory:
    return _run(str(tmp_path / "run"))


def test_retried_rows_join_the_part_in_order_as_if_none_had_failed(run_directory, tmp_path):
    receipt = _amend(run_directory, [1, 2], [])
    assert (receipt.counts.num_rows, receipt.counts.num_errors, receipt.counts.num_generations) == (2, 0, 4)
    assert _rows(run_directory) == [(row, sample) for row in (0, 1, 2) for sample in (0, 1)]
    assert not run_directory.errors_path(1).exists()
    footer = read_receipt(run_directory, 1)
    assert (footer.counts.num_rows, footer.counts.num_errors, footer.attempt) == (3, 0, 2)
    never_failed = _run(str(tmp_path / "other"), num_failed=0)
    assert content_hash(run_directory) == content_hash(never_failed)
    assert check_run(run_directory) == check_run(never_failed)


def test_a_row_that_fails_again_has_its_newest_message_and_one_more_attempt(run_directory):
    before = run_directory.part_path(1).read_bytes()
    assert _errors(run_directory) == [(1, "bad", 1), (2, "bad", 1)]
    receipt = _amend(run_directory, [], [1])
    assert (receipt.counts.num_rows, receipt.counts.num_errors) == (1, 1)
    assert _errors(run_directory) == [(1, "worse", 2), (2, "bad", 1)]
    _amend(run_directory, [], [1, 2])
    assert _errors(run_directory) == [(1, "worse", 3), (2, "worse", 2)]
    assert run_directory.part_path(1).read_bytes() == before
    assert check_run(run_directory).problems == []


def test_a_row_that_was_not_tried_keeps_its_error_row(run_directory):
    _amend(run_directory, [2], [])
    assert _errors(run_directory) == [(1, "bad", 1)]
    assert check_run(run_directory).problems == check_run(run_directory).notes == []
    assert check_run(run_directory).counts.num_errors == 1


def test_amending_again_with_the_same_rows_changes_nothing(run_directory):
    _amend(run_directory, [1, 2], [])
    before = os.stat(run_directory.part_path(1).path).st_ino
    assert _amend(run_directory, [1, 2], []).counts.num_rows == 0
    assert os.stat(run_directory.part_path(1).path).st_ino == before
    assert read_receipt(run_directory, 1).attempt == 2


def test_stale_error_rows_are_deleted_by_the_next_amendment(run_directory):
    stale = run_directory.errors_path(1).read_bytes()
    _amend(run_directory, [1], [])
    Path(run_directory.errors_path(1).path).write_bytes(stale)
    before = os.stat(run_directory.part_path(1).path).st_ino
    _amend(run_directory, [], [])
    assert _errors(run_directory) == [(2, "bad", 1)]
    assert os.stat(run_directory.part_path(1).path).st_ino == before
    _amend(run_directory, [2], [])
    Path(run_directory.errors_path(1).path).write_bytes(stale)
    _amend(run_directory, [], [])
    assert not run_directory.errors_path(1).exists()


def test_rows_of_the_part_are_never_replaced(run_directory):
    other = [row | {"text": "other"} for row in sound_rows(UNIT, [0, 1])]
    amend_part(run_directory, UNIT, generations(other), [])
    texts = [row["text"] for row in pq.read_table(run_directory.part_path(1).path).to_pylist()]
    assert texts == ["abcde", "abcde", "other", "other"]


def test_an_error_of_another_kind_for_a_row_that_is_in_the_part_is_dropped(run_directory):
    assert _amend(run_directory, [1], [0]).counts.num_errors == 0
    assert _errors(run_directory) == [(2, "bad", 1)]


def test_a_unit_whose_files_do_not_add_up_is_named_and_not_touched(run_directory):
    run_directory.errors_path(1).remove()
    before = run_directory.part_path(1).read_bytes()
    with pytest.raises(ValueError, match=r"part-000000001\.parquet: 2 rows in data and errors, and unit 1 has 3"):
        _amend(run_directory, [1], [])
    assert run_directory.part_path(1).read_bytes() == before
    Path(run_directory.part_path(1).path).write_bytes(before[:-9])
    with pytest.raises(ValueError, match=r"part-000000001\.parquet: damaged"):
        _amend(run_directory, [1], [])


def _die_at(step: str, path: str, again: list[int]) -> None:
    """Amend unit 1 and exit at once when `step` is reached."""
    replace_file, remove, place = commit.replace_file, Location.remove, [""]

    def here(name: str) -> None:
        if step == name:
            os._exit(9)

    def around(function: Any) -> Any:
        def call(location: Location, *rest: Any) -> Any:
            place[0] = "part" if "/data/" in location.path else "errors"
            here(f"before {place[0]}")
            result = function(location, *rest)
            here(f"after {place[0]}")
            return result

        return call

    class DyingOs:
        def __getattr__(self, name: str) -> Any:
            if name in ("replace", "unlink"):
                here(f"at {place[0]}")
            return getattr(os, name)

    commit.replace_file = around(replace_file)
    Location.remove = around(remove)  # type: ignore[method-assign]
    if step.startswith("at "):
        whole_file.os = DyingOs()  # type: ignore[assignment]
    _amend(RunDirectory.open(path), [index for index in (1, 2) if index not in again], again)


@pytest.mark.parametrize("again", [[], [2]], ids=["all come through", "one fails again"])
@pytest.mark.parametrize("step", STEPS)
def test_a_process_killed_at_any_step_of_an_amendment_loses_nothing_and_data_wins(run_directory, step, again, tmp_path):
    if step == "at errors" and not again:
        pytest.skip("the errors file is deleted then, by one call")
    assert exit_code_of(_die_at, step, run_directory.location.path, again) == 9
    report = check_run(run_directory)
    assert report.problems == []
    is_done = step in STEPS[2:]
    assert report.counts.num_errors == (len(again) if is_done else 2)
    rows = read_unit_rows(run_directory, UNIT)
    generated = {UNIT.row_index(row_id) for row_id in rows.generations["row_id"].to_pylist()}
    failed = [UNIT.row_index(row_id) for row_id in rows.errors["row_id"].to_pylist()]
    assert generated | set(failed) == {0, 1, 2}
    assert len(generated) + len(failed) == 3
    in_both = is_done and step != "after errors"
    assert any("count as generated" in note for note in report.notes) == in_both
    _amend(run_directory, [index for index in (1, 2) if index not in again], again)
    undisturbed = _run(str(tmp_path / "undisturbed"))
    _amend(undisturbed, [index for index in (1, 2) if index not in again], again)
    assert content_hash(run_directory) == content_hash(undisturbed)
    assert not any("count as generated" in note for note in check_run(run_directory).notes)
    assert [row for row, *_ in _errors(run_directory)] == again


def test_a_unit_in_an_object_store_is_amended_like_a_local_one(s3_folder, tmp_path):
    remote, local = _run(Location.parse(s3_folder)), _run(str(tmp_path / "run"))
    for run_directory in (remote, local):
        _amend(run_directory, [1], [2])
    assert check_run(remote) == check_run(local)
    assert content_hash(remote) == content_hash(local)
    assert read_errors(remote, 1).equals(read_errors(local, 1))
    _amend(remote, [2], [])
    assert remote.failed_unit_ids() == set()
    assert check_run(remote).problems == []


def test_integer_ids_stay_integers_in_both_files(tmp_path):
    run_directory = run_with_integer_ids(str(tmp_path))
    before = read_unit_rows(run_directory, unit())
    assert (before.generations["id"].to_pylist(), before.errors["id"].to_pylist()) == ([70], [71, 72])
    again = replace(error(unit(), 2), id=72)
    amend_part(run_directory, unit(), generations([generation(1, id=71)], pa.int64()), [again])
    after = read_unit_rows(run_directory, unit())
    assert (after.generations["id"].to_pylist(), after.errors["id"].to_pylist()) == ([70, 71], [72])
    assert check_run(run_directory).problems == []


def test_a_part_whose_ids_have_another_type_than_the_runs_is_named(tmp_path):
    run_directory = run_with_integer_ids(str(tmp_path))
    path = run_directory.part_path(0).path
    table = pq.read_table(path)
    pq.write_table(table.set_column(2, "id", table["id"].cast(pa.string())), path)
    assert "its columns are not those of a generations table" in check_run(run_directory).problems[0]


@pytest.mark.parametrize("moment", ["errors", "data"])
def test_a_reader_of_a_unit_whose_rows_move_sees_each_row_once(run_directory, tmp_path, monkeypatch, moment):
    read_bytes = Location.read_bytes
    still: list[RunDirectory] = [run_directory, _run(str(tmp_path / "other"))]

    def read_and_amend(self: Location) -> bytes:
        content = read_bytes(self)
        if still and f"/{moment}/part-000000001" in self.path:
            _amend(still.pop(0), [1, 2], [])
        return content

    one, other = still
    monkeypatch.setattr(Location, "read_bytes", read_and_amend)
    still.remove(other)
    assert check_run(one).problems == []
    still.append(other)
    rows = read_unit_rows(other, UNIT)
    row_ids = sorted({*rows.generations["row_id"].to_pylist()}) + rows.errors["row_id"].to_pylist()
    assert row_ids == [UNIT.row_id(index) for index in range(3)]
    assert still == []
