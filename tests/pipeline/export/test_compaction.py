"""A compaction writes the rows of a run in order to few large files, each whole, and touches nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.export.compacted_file import Cut, RowQueue
from pipeline.export.compaction import AlreadyCompacted, CompactedFile, Compaction, Totals
from pipeline.run.amend import amend_part
from pipeline.run.check import check_run
from pipeline.run.content_hash import content_hash
from pipeline.run.directory import RunDirectory
from pipeline.run.unit_rows import IncompleteRunError, each_unit
from pipeline.schema import errors_table, generations_schema
from pipeline.storage.location import Location
from pipeline.storage.parquet import to_parquet
from tests.pipeline.made_up import RUN, commit_rows, error, generation, generations, sound_rows, unit

NUM_UNITS = 7


def make_run(path: str | Location, num_units: int = NUM_UNITS) -> RunDirectory:
    """Make units of 3 rows with 2 samples each; in every third unit the middle row failed."""
    run_directory = RunDirectory.create(path, RUN, [unit(i) for i in range(num_units)])
    for work_unit in run_directory.units():
        failed = [1] if work_unit.unit_id % 3 == 2 else []
        rows = sound_rows(work_unit, [i for i in range(3) if i not in failed])
        commit_rows(run_directory, work_unit, rows, [error(work_unit, i) for i in failed])
    return run_directory


def compact(
    run_directory: RunDirectory, destination: Path | str, cut: Cut, **options: bool
) -> tuple[list[CompactedFile], Totals]:
    """Do what the command does."""
    compaction = Compaction(run_directory, Location.parse(str(destination)), cut, **options)
    files = list(compaction.files())
    return files, compaction.finish(files)


def read(destination: Path, folder: str = "data") -> list[list[dict[str, Any]]]:
    """Return the rows of each file, in the order of their names."""
    return [pq.read_table(path).to_pylist() for path in sorted((destination / folder).glob("*.parquet"))]


def written(folder: Path) -> dict[str, tuple[int, int]]:
    """Return each file's inode and time of change, which are equal only if the file was not written again."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "_dray.json"]
    return {str(path.relative_to(folder)): (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}


def _last_byte(path: Path, column: int) -> int:
    """Return the position of the last byte of a column's first pages."""
    chunk = pq.ParquetFile(path).metadata.row_group(0).column(column)
    start: int = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
    return start + chunk.total_compressed_size - 1


@pytest.fixture
def run_directory(tmp_path: Path) -> RunDirectory:
    return make_run(str(tmp_path / "run"))


@pytest.fixture
def all_rows(run_directory: RunDirectory) -> list[dict[str, Any]]:
    return [row for rows in each_unit(run_directory, run_directory.units()) for row in rows.generations.to_pylist()]


@pytest.mark.parametrize("max_rows", [1, 2, 3, 5, 8, 37, 38, 1000])
def test_files_cut_by_rows_hold_every_row_in_order_and_keep_samples_together(
    run_directory: RunDirectory, all_rows: list[dict[str, Any]], tmp_path: Path, max_rows: int
) -> None:
    files, totals = compact(run_directory, tmp_path / "out", Cut(max_rows=max_rows))
    parts = read(tmp_path / "out")
    assert [row for part in parts for row in part] == all_rows
    assert [len(part) for part in parts] == [file.num_rows for file in files]
    assert max(map(len, parts)) <= max(max_rows, 2)
    assert all(len({row["row_id"] for row in part}) * 2 == len(part) for part in parts)
    assert min(map(len, parts[:-1]), default=max_rows) >= max(max_rows - 1, 2), "a file could have held another row"
    assert totals == Totals(check_run(run_directory).counts, content_hash(run_directory))


@pytest.mark.parametrize("max_rows", [1, 2, 3, 4, 5])
def test_an_input_row_with_more_samples_than_a_file_should_have_gets_a_file_of_its_own(
    tmp_path: Path, max_rows: int
) -> None:
    run_directory = RunDirectory.create(str(tmp_path / "run"), RUN, [unit(0)])
    nums_samples = (5, 4, 1)
    rows = [generation(unit(0).row_id(i), sample) for i in range(3) for sample in range(nums_samples[i])]
    commit_rows(run_directory, unit(0), rows, [])
    files, _ = compact(run_directory, tmp_path / "out", Cut(max_rows=max_rows))
    assert [file.num_rows for file in files] == ([5, 5] if max_rows == 5 else [5, 4, 1])


@pytest.mark.parametrize("num_bytes", [1, 9000, 20_000, 10**9])
def test_a_file_cut_by_bytes_ends_when_it_has_that_size(
    run_directory: RunDirectory, all_rows: list[dict[str, Any]], tmp_path: Path, num_bytes: int
) -> None:
    files, _ = compact(run_directory, tmp_path / "out", Cut(num_bytes=num_bytes))
    assert [row for part in read(tmp_path / "out") for row in part] == all_rows
    assert all(file.num_bytes >= num_bytes for file in files[:-1])
    assert len(files) == {1: 19, 10**9: 1}.get(num_bytes, len(files))
    assert num_bytes == 1 or all(file.num_bytes < 2 * num_bytes + 8000 for file in files), "footer and last row group"


def test_files_have_checksums_sorted_row_groups_and_the_schema_of_the_run(
    run_directory: RunDirectory, tmp_path: Path
) -> None:
    compact(run_directory, tmp_path / "out", Cut(max_rows=10))
    path = tmp_path / "out/data/part-00000.parquet"
    file = pq.ParquetFile(path)
    assert file.schema_arrow.equals(generations_schema({}))
    group = file.metadata.row_group(0)
    assert [column.column_index for column in group.sorting_columns] == [0, 1]
    assert group.column(0).compression == "ZSTD"
    content = bytearray(path.read_bytes())
    content[_last_byte(path, column=5)] ^= 1
    with pytest.raises(OSError, match="CRC"):
        pq.ParquetFile(pa.BufferReader(bytes(content)), page_checksum_verification=True).read()


def test_the_note_names_the_run_its_counts_and_every_file(run_directory: RunDirectory, tmp_path: Path) -> None:
    files, totals = compact(run_directory, tmp_path / "out", Cut(max_rows=10))
    note = json.loads((tmp_path / "out/_dray.json").read_text())
    assert note["source"] == run_directory.location.name
    assert note["run"] == run_directory.manifest.token
    assert note["complete"]
    assert note["counts"] == totals.counts.to_dict()
    assert note["content_hash"] == content_hash(run_directory)
    assert note["files"] == [
        {"name": file.name, "num_rows": file.num_rows, "num_bytes": (tmp_path / "out" / file.name).stat().st_size}
        for file in files
    ]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"_dray.json", "data"}


def test_error_rows_are_compacted_if_asked_for_and_stale_ones_are_not(
    run_directory: RunDirectory, tmp_path: Path
) -> None:
    stale = errors_table([error(unit(2), 1), error(unit(2), 2)])  # a retry of row 2 died before it deleted this
    Path(run_directory.errors_path(2).path).write_bytes(to_parquet(stale))
    files, totals = compact(run_directory, tmp_path / "out", Cut(max_rows=1), include_errors=True)
    failed = [row["row_id"] for part in read(tmp_path / "out", "errors") for row in part]
    assert failed == [unit(2).row_id(1), unit(5).row_id(1)]
    assert [file.name for file in files if file.name.startswith("errors/")] == [
        "errors/part-00000.parquet",
        "errors/part-00001.parquet",
    ]
    assert totals.counts.num_errors == 2


def test_a_run_whose_rows_all_failed_becomes_one_file_without_rows(tmp_path: Path) -> None:
    run_directory = RunDirectory.create(str(tmp_path / "run"), RUN, [unit(0)])
    commit_rows(run_directory, unit(0), [], [error(unit(0), i) for i in range(3)])
    (file,), totals = compact(run_directory, tmp_path / "out", Cut(max_rows=10))
    assert (file.num_rows, totals.counts.num_errors) == (0, 3)
    assert pq.read_schema(tmp_path / "out/data/part-00000.parquet").equals(generations_schema({}))


def test_compaction_does_not_touch_the_run(run_directory: RunDirectory, tmp_path: Path) -> None:
    before = written(tmp_path / "run")
    compact(run_directory, tmp_path / "out", Cut(max_rows=10), include_errors=True)
    assert written(tmp_path / "run") == before


@pytest.mark.parametrize("num_files", [0, 1, 3])
def test_an_interrupted_compaction_starts_from_the_beginning_and_leaves_none_of_its_files(
    run_directory: RunDirectory, tmp_path: Path, num_files: int
) -> None:
    out, undisturbed = tmp_path / "out", tmp_path / "undisturbed"
    compact(run_directory, undisturbed, Cut(max_rows=8))
    interrupted = Compaction(run_directory, Location.parse(str(out)), Cut(max_rows=2), include_errors=True).files()
    for _ in range(num_files):
        next(interrupted)
    interrupted.close()  # type: ignore[attr-defined]
    assert not json.loads((out / "_dray.json").read_text())["complete"]
    (out / "errors").mkdir()
    (out / "errors/part-00000.parquet").write_bytes(b"of the interrupted compaction")
    (out / "data").mkdir(exist_ok=True)
    (out / "data" / f"part-{num_files:05d}.parquet.{'0' * 32}").write_bytes(b"half a file")
    compact(run_directory, out, Cut(max_rows=8))
    assert written(out).keys() == written(undisturbed).keys()
    for path in (undisturbed / "data").iterdir():
        assert (out / "data" / path.name).read_bytes() == path.read_bytes()


def test_a_file_that_cannot_be_written_leaves_no_partial_file(
    run_directory: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generations = Compaction._generations

    def fail_at_the_fourth(self: Compaction) -> Iterator[pa.Table]:
        for number, table in enumerate(generations(self)):
            if number == 3:
                raise OSError("the store is away")
            yield table

    monkeypatch.setattr(Compaction, "_generations", fail_at_the_fourth)
    with pytest.raises(OSError, match="the store is away"):
        compact(run_directory, tmp_path / "out", Cut(max_rows=1000))
    assert written(tmp_path / "out") == {}
    assert not json.loads((tmp_path / "out/_dray.json").read_text())["complete"]


def test_an_incomplete_run_is_refused_unless_a_partial_compaction_is_asked_for(
    run_directory: RunDirectory, all_rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    run_directory.part_path(4).remove()
    with pytest.raises(IncompleteRunError, match="1 of 7 units are missing, the first is unit 4"):
        compact(run_directory, tmp_path / "out", Cut(max_rows=10))
    assert not (tmp_path / "out").exists()
    _, totals = compact(run_directory, tmp_path / "out", Cut(max_rows=10), is_partial=True)
    rows = [row for part in read(tmp_path / "out") for row in part]
    assert rows == [row for row in all_rows if row["row_id"] >> 32 != 4]
    assert totals.counts.num_rows == 18


def test_a_destination_with_foreign_files_is_refused_and_not_touched(
    run_directory: RunDirectory, tmp_path: Path
) -> None:
    cut, out = Cut(max_rows=10), tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"is not empty and is no compaction: it has \['mine.txt'\]"):
        compact(run_directory, out, cut)
    assert [path.name for path in out.iterdir()] == ["mine.txt"]
    (out / "mine.txt").unlink()
    (out / "data").mkdir()
    (out / "data/part-00000.parquet").write_bytes(b"x")
    with pytest.raises(ValueError, match="is not empty and is no compaction"):
        compact(run_directory, out, cut)
    with pytest.raises(ValueError, match="is a file; the destination must be a folder"):
        compact(run_directory, out / "data/part-00000.parquet", cut)
    for place in ("run", "run/errors", "run/new"):
        with pytest.raises(ValueError, match="is inside the run"):
            compact(run_directory, tmp_path / place, cut)


def test_a_complete_compaction_is_there_already_and_is_left_as_it_is(
    run_directory: RunDirectory, tmp_path: Path
) -> None:
    out, cut = tmp_path / "out", Cut(max_rows=10)
    compact(run_directory, out, cut, include_errors=True)
    before, note = written(out), (out / "_dray.json").read_bytes()
    with pytest.raises(AlreadyCompacted, match="holds this compaction already, complete in 5 files"):
        compact(run_directory, out, cut, include_errors=True)
    assert (written(out), (out / "_dray.json").read_bytes()) == (before, note)
    (out / "data/part-00001.parquet").write_bytes(b"shorter")
    (out / "data/part-00002.parquet").rename(out / "data/part-00099.parquet")
    changed = "but its files are not as they were written: .*part-00001.parquet, .*part-00002.*, .*part-00099.*;"
    with pytest.raises(ValueError, match=changed):
        compact(run_directory, out, cut, include_errors=True)


def test_a_destination_of_another_run_or_of_another_complete_compaction_is_refused(
    run_directory: RunDirectory, tmp_path: Path
) -> None:
    out, note = tmp_path / "out", tmp_path / "out/_dray.json"
    compact(run_directory, out, Cut(max_rows=10))
    before = written(out)
    refusal = "holds a complete compaction of this run already, but "
    with pytest.raises(ValueError, match=refusal + r"with other options \(rows_per_file\)"):
        compact(run_directory, out, Cut(max_rows=9))
    with pytest.raises(ValueError, match=refusal + r"with other options \(include_errors\)"):
        compact(run_directory, out, Cut(max_rows=10), include_errors=True)
    amend_part(run_directory, unit(5), generations(sound_rows(unit(5), [1])), [])
    with pytest.raises(ValueError, match=refusal + "the run has changed since"):
        compact(run_directory, out, Cut(max_rows=10))
    other = make_run(str(tmp_path / "other"))
    note.write_text(json.dumps(json.loads(note.read_text()) | {"complete": False}))
    with pytest.raises(ValueError, match=rf"holds another run, {run_directory.location.name};"):
        compact(other, out, Cut(max_rows=10))
    note.write_text("{")
    with pytest.raises(ValueError, match="is not of this version, or damaged"):
        compact(run_directory, out, Cut(max_rows=10))
    assert written(out) == before


def test_a_run_that_changes_during_its_compaction_is_refused_at_the_end(
    run_directory: RunDirectory, tmp_path: Path
) -> None:
    compaction = Compaction(run_directory, Location.parse(str(tmp_path / "out")), Cut(max_rows=10))
    files = list(compaction.files())
    amend_part(run_directory, unit(5), generations(sound_rows(unit(5), [1])), [])
    with pytest.raises(ValueError, match="changed while it was compacted"):
        compaction.finish(files)


def test_a_row_that_is_lost_or_altered_during_compaction_is_found_at_the_end(
    run_directory: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = RowQueue.take

    def lose_one(self: RowQueue, num_bytes: int, max_rows: int) -> list[pa.Table]:
        return [table.slice(2) for table in take(self, num_bytes, max_rows)]

    def alter_one(self: RowQueue, num_bytes: int, max_rows: int) -> list[pa.Table]:
        tables = take(self, num_bytes, max_rows)
        for number, table in enumerate(tables):
            rows = table.to_pylist()
            rows[0]["token_ids"][0] += 1
            tables[number] = pa.Table.from_pylist(rows, schema=table.schema)
        return tables

    for number, change in enumerate((lose_one, alter_one)):
        with monkeypatch.context() as patch:
            patch.setattr(RowQueue, "take", change)
            with pytest.raises(ValueError, match=r"its files hold .* and the run holds"):
                compact(run_directory, tmp_path / str(number), Cut(max_rows=1000))
        assert not json.loads((tmp_path / str(number) / "_dray.json").read_text())["complete"]


@pytest.mark.parametrize("name", ["data/part-00099.parquet", "errors/part-00000.parquet", "data/notes.parquet"])
def test_a_foreign_file_in_the_destination_is_named_at_the_end_and_not_touched(
    run_directory: RunDirectory, tmp_path: Path, name: str
) -> None:
    out, cut = tmp_path / "out", Cut(max_rows=10)
    compaction = Compaction(run_directory, Location.parse(str(out)), cut)
    files = list(compaction.files())
    (out / name).parent.mkdir(exist_ok=True)
    (out / name).write_bytes((out / "data/part-00000.parquet").read_bytes())
    with pytest.raises(ValueError, match=rf"out also has \['{name}'\], which are not of this compaction .*delete them"):
        compaction.finish(files)
    assert (out / name).exists()
    assert not json.loads((out / "_dray.json").read_text())["complete"]


@pytest.mark.parametrize("folder", ["data", "errors"])
def test_a_file_that_is_damaged_before_the_end_is_named(
    run_directory: RunDirectory, tmp_path: Path, folder: str
) -> None:
    out, cut = tmp_path / "out", Cut(max_rows=10)
    compaction = Compaction(run_directory, Location.parse(str(out)), cut, include_errors=True)
    files = list(compaction.files())
    path = out / folder / "part-00000.parquet"
    content = bytearray(path.read_bytes())
    content[_last_byte(path, column=0)] ^= 1
    path.write_bytes(content)
    with pytest.raises(OSError, match=rf"{folder}/part-00000\.parquet cannot be read back: .*run the same command"):
        compaction.finish(files)
    compact(run_directory, out, cut)


def test_memory_does_not_grow_with_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.export.compacted_file._ROW_GROUP_BYTES", 200_000)
    peaks = []
    for num_units in (12, 48):
        run_directory = RunDirectory.create(
            str(tmp_path / f"run-{num_units}"), RUN, [unit(i, num_rows=50) for i in range(num_units)]
        )
        for work_unit in run_directory.units():
            rows = [generation(work_unit.row_id(i), text=f"{i} of {work_unit.unit_id} " * 100) for i in range(50)]
            commit_rows(run_directory, work_unit, rows, [])
        usual, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
        pa.set_memory_pool(pool)
        try:
            (file,), _ = compact(run_directory, tmp_path / f"out-{num_units}", Cut(max_rows=10**9))
        finally:
            pa.set_memory_pool(usual)
        assert pq.ParquetFile(tmp_path / f"out-{num_units}/{file.name}").num_row_groups > num_units / 8
        peaks.append(pool.max_memory())
    assert peaks[1] < 1.5 * peaks[0]


def test_a_run_in_an_object_store_is_compacted_to_a_folder_and_a_run_in_a_folder_to_a_store(
    s3_folder: str, run_directory: RunDirectory, tmp_path: Path
) -> None:
    remote = make_run(Location.parse(s3_folder))
    cut = Cut(max_rows=8)
    _, totals = compact(remote, tmp_path / "out", cut, include_errors=True)
    destination = s3_folder.replace("/folder", "/compacted")
    files = Compaction(run_directory, Location.parse(destination), cut, include_errors=True).files()
    next(files)
    files.close()  # type: ignore[attr-defined]
    again, remote_totals = compact(run_directory, destination, cut, include_errors=True)
    assert remote_totals == totals
    for file in again:
        content = Location.parse(destination).child(file.name).read_bytes()
        assert pq.read_table(pa.BufferReader(content)).equals(pq.read_table(tmp_path / "out" / file.name))


@pytest.mark.parametrize("limits", [{}, {"max_rows": 3, "num_bytes": 3}, {"max_rows": 0}, {"num_bytes": -1}])
def test_a_cut_is_by_rows_or_by_bytes_and_at_least_one(limits: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"files are cut by rows or by bytes|at least one row or byte"):
        Cut(**limits)


@pytest.mark.parametrize(
    ("num_bytes", "max_rows", "num_taken"),
    [(10**6, 1, 0), (10**6, 2, 2), (10**6, 3, 3), (10**6, 5, 3), (10**6, 6, 6), (10**6, 99, 9), (1, 99, 2)],
)
def test_a_row_group_never_parts_the_samples_of_an_input_row(num_bytes: int, max_rows: int, num_taken: int) -> None:
    first = pa.table({"row_id": [0, 0, 1, 2, 2, 2], "sample": [0, 1, 0, 0, 1, 2]})
    second = pa.table({"row_id": [3, 3, 3], "sample": [0, 1, 2]})
    queue = RowQueue([first, first.slice(0, 0), second])
    assert sum(table.num_rows for table in queue.take(num_bytes, max_rows)) == num_taken
    left = queue.take(10**6, 10**6)
    assert sum(table.num_rows for table in left) == 9 - num_taken
    assert queue.is_empty
