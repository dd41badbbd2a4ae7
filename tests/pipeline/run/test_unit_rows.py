"""A run is read one unit at a time: each row once, in order, and damage is always noticed."""

import threading
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipeline.run.reading import read_ahead
from pipeline.run.unit_rows import each_unit, read_unit_rows
from tests.pipeline.made_up import unit, write_errors


def test_each_unit_has_its_rows_and_the_rows_that_failed(finished_run):
    first, second = each_unit(finished_run, finished_run.units())
    assert first.generations["row_id"].to_pylist() == [0, 0, 1, 1, 2, 2]
    assert first.errors.num_rows == 0
    assert second.errors["row_id"].to_pylist() == [unit(1).row_id(1)]
    finished_run.part_path(1).remove()
    with pytest.raises(FileNotFoundError):
        list(each_unit(finished_run, finished_run.units()))


def test_a_row_in_data_and_in_errors_counts_as_generated(finished_run):
    write_errors(finished_run, 1, [2, 1])
    rows = read_unit_rows(finished_run, unit(1))
    assert rows.errors["row_id"].to_pylist() == [unit(1).row_id(1)]
    assert rows.num_stale_errors == 1


def test_rows_are_read_in_order_however_they_were_written(finished_run):
    path = finished_run.part_path(0).path
    table = pq.read_table(path)
    pq.write_table(table.take([5, 0, 3, 2, 4, 1]), path)
    rows = read_unit_rows(finished_run, unit(0), columns=["row_id", "sample", "text"]).generations
    assert rows.equals(table.select(["row_id", "sample", "text"]))


@pytest.mark.parametrize("name", ["data/part-000000001.parquet", "errors/part-000000001.parquet"])
def test_a_damaged_file_is_named_with_what_to_do(finished_run, name):
    path = Path(finished_run.location.child(name).path)
    content = bytearray(path.read_bytes())
    content[40] ^= 1
    for damaged in (content, content[:-4], b"PAR1"):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=rf"(?s){name}: damaged, or no Parquet file.*dray verify --repair"):
            read_unit_rows(finished_run, unit(1))


def test_a_table_with_other_columns_is_named(finished_run):
    part, errors = (Path(finished_run.location.child(f"{f}/part-000000001.parquet").path) for f in ("data", "errors"))
    errors.write_bytes(part.read_bytes())
    with pytest.raises(ValueError, match="its columns are not those of an errors table"):
        read_unit_rows(finished_run, unit(1))
    errors.unlink()
    pq.write_table(pq.read_table(part).drop_columns(["row_id"]), part)
    with pytest.raises(ValueError, match="its columns are not those of a generations table"):
        read_unit_rows(finished_run, unit(1))


def test_reading_ahead_keeps_the_order_of_results_and_errors():
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


def test_reading_ahead_keeps_few_results_in_memory():
    asked: list[int] = []
    results = read_ahead(lambda number: number, (asked.append(i) or i for i in range(100)), num_at_once=3)
    for number in range(50):
        assert next(results) == number
        assert len(asked) <= number + 3
