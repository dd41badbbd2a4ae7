"""A run is read one unit at a time: each row once, in order, and nothing damaged passes for sound."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipeline.run.commit import to_parquet
from pipeline.run.directory import RunDirectory
from pipeline.run.read_ahead import read_ahead
from pipeline.run.unit_rows import IncompleteRunError, each_unit, read_unit_rows, refuse_incomplete
from pipeline.schema import errors_table
from tests.pipeline.made_up import error, unit


def test_each_unit_has_its_rows_and_the_rows_that_failed(finished_run: RunDirectory) -> None:
    first, second = each_unit(finished_run, finished_run.units())
    assert (first.unit, second.unit) == (unit(0), unit(1))
    assert first.generations["row_id"].to_pylist() == [0, 0, 1, 1, 2, 2]
    assert first.errors.num_rows == 0
    assert second.errors["row_id"].to_pylist() == [unit(1).row_id(1)]


def test_of_a_row_in_both_data_wins(finished_run: RunDirectory) -> None:
    stale = errors_table([error(unit(1), 2), error(unit(1), 1)])
    Path(finished_run.errors_path(1).path).write_bytes(to_parquet(stale))
    rows = read_unit_rows(finished_run, unit(1))
    assert rows.errors["row_id"].to_pylist() == [unit(1).row_id(1)]
    assert rows.num_stale_errors == 1


def test_rows_come_in_order_however_they_were_written(finished_run: RunDirectory) -> None:
    path = finished_run.part_path(0).path
    table = pq.read_table(path)
    pq.write_table(table.take([5, 0, 3, 2, 4, 1]), path)
    rows = read_unit_rows(finished_run, unit(0), columns=["row_id", "sample", "text"]).generations
    assert rows.equals(table.select(["row_id", "sample", "text"]))


def test_only_what_is_asked_for_is_read(finished_run: RunDirectory) -> None:
    rows = read_unit_rows(finished_run, unit(0), columns=["sample", "row_id"])
    assert sorted(rows.generations.column_names) == ["row_id", "sample"]


@pytest.mark.parametrize("name", ["data/part-000000001.parquet", "errors/part-000000001.parquet"])
def test_a_damaged_file_is_named_with_what_to_do(finished_run: RunDirectory, name: str) -> None:
    path = Path(finished_run.location.child(name).path)
    content = bytearray(path.read_bytes())
    content[40] ^= 1
    for damaged in (content, content[:-4], b"PAR1"):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=rf"(?s){name}: damaged, or no Parquet file.*jobs.verify --repair"):
            read_unit_rows(finished_run, unit(1))


def test_a_table_of_something_else_is_named(finished_run: RunDirectory) -> None:
    part, errors = (Path(finished_run.location.child(f"{f}/part-000000001.parquet").path) for f in ("data", "errors"))
    sound = part.read_bytes()
    errors.write_bytes(sound)
    with pytest.raises(ValueError, match="its columns are not those of an errors table"):
        read_unit_rows(finished_run, unit(1))
    errors.unlink()
    pq.write_table(pq.read_table(part).drop_columns(["row_id"]), part)
    with pytest.raises(ValueError, match="its columns are not those of a generations table"):
        read_unit_rows(finished_run, unit(1))


def test_an_incomplete_run_is_refused_naming_the_first_missing_unit(finished_run: RunDirectory) -> None:
    refuse_incomplete(finished_run)
    finished_run.part_path(1).remove()
    with pytest.raises(IncompleteRunError, match="1 of 2 units are missing, the first is unit 1"):
        refuse_incomplete(finished_run)
    with pytest.raises(FileNotFoundError):
        list(each_unit(finished_run, finished_run.units()))


def test_reading_ahead_keeps_the_order_and_raises_in_its_turn() -> None:
    may_go_on = threading.Event()

    def read(number: int) -> int:
        if number == 0:
            may_go_on.wait(20)
        if number == 3:
            may_go_on.set()  # 0 is waited for while 3 is read
        if number == 6:
            raise OSError("gone")
        return number * 10

    results = read_ahead(read, range(9), num_at_once=4)
    assert [next(results) for _ in range(6)] == [0, 10, 20, 30, 40, 50]
    with pytest.raises(OSError, match="gone"):
        next(results)


def test_reading_ahead_holds_few_results() -> None:
    asked: list[int] = []
    results = read_ahead(lambda number: number, (asked.append(i) or i for i in range(100)), num_at_once=3)
    for number in range(50):
        assert next(results) == number
        assert len(asked) <= number + 3
