"""A run as few large files: the same rows in order, each file whole, and nothing else touched."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.export.compacted_file import Cut
from pipeline.export.compaction import CompactedFile, Compaction, Totals
from pipeline.run.amend import amend_part
from pipeline.run.check import check_run, content_hash
from pipeline.run.commit import to_parquet
from pipeline.run.directory import RunDirectory
from pipeline.run.unit_rows import IncompleteRunError, each_unit
from pipeline.schema import errors_table, generations_schema
from pipeline.storage.location import Location
from tests.pipeline.made_up import RUN, commit_rows, error, generation, generations, sound_rows, unit

NUM_UNITS = 7


def make_run(path: str | Location, num_units: int = NUM_UNITS) -> RunDirectory:
    """Units of 3 rows with 2 samples each; in every third unit the row in the middle failed."""
    run_directory = RunDirectory.create(path, RUN, [unit(i) for i in range(num_units)])
    for work_unit in run_directory.units():
        failed = [1] if work_unit.unit_id % 3 == 2 else []
        rows = sound_rows(work_unit, [i for i in range(3) if i not in failed])
        commit_rows(run_directory, work_unit, rows, [error(work_unit, i) for i in failed])
    return run_directory


def compact(
    run_directory: RunDirectory, destination: Path | str, cut: Cut, **options: bool
) -> tuple[list[CompactedFile], Totals]:
    """What the command does."""
    compaction = Compaction.begin(run_directory, Location.parse(str(destination)), cut, **options)
    files = list(compaction.files())
    return files, compaction.finish(files)


def read(destination: Path, folder: str = "data") -> list[list[dict[str, Any]]]:
    """The rows of each file, in the order of their names."""
    return [pq.read_table(path).to_pylist() for path in sorted((destination / folder).glob("*.parquet"))]


def written(folder: Path) -> dict[str, tuple[int, int]]:
    """Each file's inode and time of change: equal only if nobody wrote it again."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "_dray.json"]
    return {str(path.relative_to(folder)): (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}


def _last_byte(path: Path, column: int) -> int:
    """The place of the last byte of a column's first pages."""
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
def test_cut_by_rows_the_files_hold_every_row_in_order_and_part_no_samples(
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


@pytest.mark.parametrize("num_bytes", [1, 9000, 20_000, 10**9])
def test_cut_by_bytes_a_file_ends_when_it_has_them(
    run_directory: RunDirectory, all_rows: list[dict[str, Any]], tmp_path: Path, num_bytes: int
) -> None:
    files, _ = compact(run_directory, tmp_path / "out", Cut(num_bytes=num_bytes))
    assert [row for part in read(tmp_path / "out") for row in part] == all_rows
    assert all(file.num_bytes >= num_bytes for file in files[:-1])
    assert len(files) == {1: 19, 10**9: 1}.get(num_bytes, len(files))
    assert num_bytes == 1 or all(file.num_bytes < 2 * num_bytes + 8000 for file in files), "footer and last row group"


def test_files_have_checksums_sorted_row_groups_and_the_tables_own_schema(
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


def test_error_rows_are_compacted_if_asked_for_and_only_those_that_stand(
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


def test_a_run_whose_rows_all_failed_is_one_file_without_rows(tmp_path: Path) -> None:
    run_directory = RunDirectory.create(str(tmp_path / "run"), RUN, [unit(0)])
    commit_rows(run_directory, unit(0), [], [error(unit(0), i) for i in range(3)])
    (file,), totals = compact(run_directory, tmp_path / "out", Cut(max_rows=10))
    assert (file.num_rows, totals.counts.num_errors) == (0, 3)
    assert pq.read_schema(tmp_path / "out/data/part-00000.parquet").equals(generations_schema({}))


def test_the_run_is_not_touched(run_directory: RunDirectory, tmp_path: Path) -> None:
    before = written(tmp_path / "run")
    compact(run_directory, tmp_path / "out", Cut(max_rows=10), include_errors=True)
    assert written(tmp_path / "run") == before


@pytest.mark.parametrize("num_files", [0, 1, 3])
def test_a_compaction_that_dies_goes_on_behind_its_last_file_and_ends_as_if_it_had_not(
    run_directory: RunDirectory, tmp_path: Path, num_files: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut, out, undisturbed = Cut(max_rows=8), tmp_path / "out", tmp_path / "undisturbed"
    compact(run_directory, undisturbed, cut)
    files = Compaction.begin(run_directory, Location.parse(str(out)), cut).files()
    for _ in range(num_files):
        next(files)
    files.close()  # type: ignore[attr-defined]
    before = written(out)
    (out / "data").mkdir(exist_ok=True)
    left = out / "data" / f"part-{num_files:05d}.parquet.{'0' * 32}"
    left.write_bytes(b"half a file")
    again, _ = compact(run_directory, out, cut)
    assert not left.exists()
    assert [file.was_there for file in again] == [number < num_files for number in range(len(again))]
    assert {name: written(out)[name] for name in before} == before
    for path in (undisturbed / "data").iterdir():
        assert (out / "data" / path.name).read_bytes() == path.read_bytes()


def test_a_file_that_is_gone_is_written_again_and_the_others_are_not(
    run_directory: RunDirectory, tmp_path: Path
) -> None:
    out, cut = tmp_path / "out", Cut(max_rows=8)
    compact(run_directory, out, cut)
    before = written(out)
    (out / "data/part-00001.parquet").unlink()
    files, _ = compact(run_directory, out, cut)
    assert [file.name for file in files if not file.was_there] == ["data/part-00001.parquet"]
    after = written(out)
    assert {name for name in before if before[name] != after[name]} == {"data/part-00001.parquet"}


def test_a_file_of_another_place_in_the_run_is_not_taken_for_this_one(
    run_directory: RunDirectory, tmp_path: Path
) -> None:
    out, cut = tmp_path / "out", Cut(max_rows=8)
    compact(run_directory, out, cut)
    path = out / "data/part-00001.parquet"
    content = path.read_bytes()
    path.write_bytes((out / "data/part-00002.parquet").read_bytes())
    files, _ = compact(run_directory, out, cut)
    assert [file.name for file in files if not file.was_there] == ["data/part-00001.parquet"]
    assert path.read_bytes() == content


def test_a_file_that_cannot_be_written_leaves_nothing_half(
    run_directory: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = Compaction._pieces

    def fail_at_the_fourth(self: Compaction, *values: Any) -> Iterator[Any]:
        for number, piece in enumerate(pieces(self, *values)):
            if number == 3:
                raise OSError("the store is away")
            yield piece

    monkeypatch.setattr(Compaction, "_pieces", fail_at_the_fourth)
    with pytest.raises(OSError, match="the store is away"):
        compact(run_directory, tmp_path / "out", Cut(max_rows=1000))
    assert written(tmp_path / "out") == {}
    assert not json.loads((tmp_path / "out/_dray.json").read_text())["complete"]


def test_an_incomplete_run_is_refused_unless_what_there_is_will_do(
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


def test_a_destination_that_holds_anything_else_is_refused_and_left_alone(
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


def test_a_destination_of_another_run_or_of_other_options_is_refused_by_name(
    run_directory: RunDirectory, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    compact(run_directory, out, Cut(max_rows=10))
    before = written(out)
    other = make_run(str(tmp_path / "other"))
    with pytest.raises(ValueError, match=rf"holds another run, {run_directory.location.name};"):
        compact(other, out, Cut(max_rows=10))
    with pytest.raises(ValueError, match=r"was begun with other options \(rows_per_file 10; now rows_per_file 11\)"):
        compact(run_directory, out, Cut(max_rows=11))
    with pytest.raises(ValueError, match=r"\(include_errors False; now include_errors True\)"):
        compact(run_directory, out, Cut(max_rows=10), include_errors=True)
    (out / "_dray.json").write_text("{")
    with pytest.raises(ValueError, match="is not of this version, or damaged"):
        compact(run_directory, out, Cut(max_rows=10))
    assert written(out) == before


def test_a_run_that_changed_since_is_refused_and_one_that_changes_meanwhile_is_noticed(
    run_directory: RunDirectory, tmp_path: Path
) -> None:
    cut = Cut(max_rows=10)
    compact(run_directory, tmp_path / "out", cut)
    compaction = Compaction.begin(run_directory, Location.parse(str(tmp_path / "new")), cut)
    files = list(compaction.files())
    amend_part(run_directory, unit(5), generations(sound_rows(unit(5), [1])), [])
    with pytest.raises(ValueError, match="holds an older state of this run"):
        compact(run_directory, tmp_path / "out", cut)
    with pytest.raises(ValueError, match="changed while it was compacted"):
        compaction.finish(files)


def test_a_row_that_is_lost_or_altered_on_the_way_is_found_at_the_end(
    run_directory: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = Compaction._pieces

    def lose_one(self: Compaction, *values: Any) -> Iterator[Any]:
        for number, (place, piece) in enumerate(pieces(self, *values)):
            yield place, piece.slice(2) if number == 2 else piece

    def alter_one(self: Compaction, *values: Any) -> Iterator[Any]:
        for number, (place, piece) in enumerate(pieces(self, *values)):
            rows = piece.to_pylist()
            rows[0]["token_ids"][0] += number == 2
            yield place, pa.Table.from_pylist(rows, schema=piece.schema)

    for number, change in enumerate((lose_one, alter_one)):
        with monkeypatch.context() as patch:
            patch.setattr(Compaction, "_pieces", change)
            with pytest.raises(ValueError, match=r"its files hold .* and the run holds"):
                compact(run_directory, tmp_path / str(number), Cut(max_rows=1000))
        assert not json.loads((tmp_path / str(number) / "_dray.json").read_text())["complete"]


@pytest.mark.parametrize("name", ["data/part-00099.parquet", "errors/part-00000.parquet", "data/notes.parquet"])
def test_a_file_that_is_not_of_the_compaction_is_named_at_the_end_and_left_alone(
    run_directory: RunDirectory, tmp_path: Path, name: str
) -> None:
    out, cut = tmp_path / "out", Cut(max_rows=10)
    compaction = Compaction.begin(run_directory, Location.parse(str(out)), cut)
    files = list(compaction.files())
    (out / name).parent.mkdir(exist_ok=True)
    (out / name).write_bytes((out / "data/part-00000.parquet").read_bytes())
    with pytest.raises(ValueError, match=rf"out also has \['{name}'\], which are not of this compaction .*delete them"):
        compaction.finish(files)
    assert (out / name).exists()
    assert not json.loads((out / "_dray.json").read_text())["complete"]
    (out / name).unlink()
    compact(run_directory, out, cut)


def test_a_file_that_is_damaged_before_the_end_is_named(run_directory: RunDirectory, tmp_path: Path) -> None:
    out, cut = tmp_path / "out", Cut(max_rows=10)
    compact(run_directory, out, cut)
    path = out / "data/part-00001.parquet"
    content = bytearray(path.read_bytes())
    content[_last_byte(path, column=0)] ^= 1
    path.write_bytes(content)
    with pytest.raises(OSError, match=r"part-00001\.parquet cannot be read back: .*delete it and run the same command"):
        compact(run_directory, out, cut)
    path.unlink()
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


def test_a_run_in_an_object_store_is_compacted_to_a_folder_and_to_a_store(
    s3_folder: str, run_directory: RunDirectory, tmp_path: Path
) -> None:
    remote = make_run(Location.parse(s3_folder))
    cut = Cut(max_rows=8)
    _, totals = compact(remote, tmp_path / "out", cut, include_errors=True)
    destination = s3_folder.replace("/folder", "/compacted")
    files = Compaction.begin(run_directory, Location.parse(destination), cut, include_errors=True).files()
    next(files)
    files.close()  # type: ignore[attr-defined]
    again, remote_totals = compact(run_directory, destination, cut, include_errors=True)
    assert [file.was_there for file in again] == [True] + [False] * (len(again) - 1)
    assert remote_totals == totals
    for file in again:
        content = Location.parse(destination).child(file.name).read_bytes()
        assert pq.read_table(pa.BufferReader(content)).equals(pq.read_table(tmp_path / "out" / file.name))


@pytest.mark.parametrize("limits", [{}, {"max_rows": 3, "num_bytes": 3}, {"max_rows": 0}, {"num_bytes": -1}])
def test_a_cut_is_by_rows_or_by_bytes_and_at_least_one(limits: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"files are cut by rows or by bytes|at least one row or byte"):
        Cut(**limits)
