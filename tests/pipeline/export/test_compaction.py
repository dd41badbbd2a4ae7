"""A compaction writes the rows of a run in order to few large files, each whole, and touches nothing else."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.export.compacted_file import Cut, RowQueue
from pipeline.export.compaction import AlreadyCompacted, CompactedFile, Compaction, Totals
from pipeline.run.check import check_run
from pipeline.run.commit import amend_part
from pipeline.run.directory import RunDirectory
from pipeline.run.fingerprint import content_hash
from pipeline.run.unit_rows import each_unit
from pipeline.schema import generations_schema
from pipeline.storage.location import Location
from tests.pipeline.made_up import (
    RUN,
    commit_rows,
    error,
    generation,
    generations,
    run_with_integer_ids,
    sound_rows,
    unit,
    write_errors,
)

NUM_UNITS = 7
TEN_ROWS = Cut(max_rows=10)


def make_run(path: str | Location, num_units: int = NUM_UNITS) -> RunDirectory:
    """Make units of 3 rows with 2 samples each; in every third unit the middle row failed."""
    run_directory = RunDirectory.create(path, RUN, [unit(i) for i in range(num_units)])
    for work_unit in run_directory.units():
        failed = [1] if work_unit.unit_id % 3 == 2 else []
        rows = sound_rows(work_unit, [i for i in range(3) if i not in failed])
        commit_rows(run_directory, work_unit, rows, [error(work_unit, i) for i in failed])
    return run_directory


@dataclass
class Corpus:
    """A run, and the folder to which it is compacted."""

    run: RunDirectory
    out: Path

    def begin(self, cut: Cut = TEN_ROWS, **options: bool) -> tuple[Compaction, list[CompactedFile]]:
        """Write the files and do not finish."""
        compaction = Compaction(self.run, Location.parse(str(self.out)), cut, **options)
        return compaction, list(compaction.files())

    def compact(self, cut: Cut = TEN_ROWS, **options: bool) -> tuple[list[CompactedFile], Totals]:
        """Do what the command does."""
        compaction, files = self.begin(cut, **options)
        return files, compaction.finish(files)

    @property
    def note(self) -> dict[str, Any]:
        return dict(json.loads((self.out / "_dray.json").read_text()))

    def parts(self, folder: str = "data") -> list[list[dict[str, Any]]]:
        """Return the rows of each file, in the order of their names."""
        return [pq.read_table(path).to_pylist() for path in sorted((self.out / folder).glob("*.parquet"))]

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of all files."""
        return [row for part in self.parts() for row in part]


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
def corpus(tmp_path: Path) -> Corpus:
    return Corpus(make_run(str(tmp_path / "run")), tmp_path / "out")


@pytest.fixture
def all_rows(corpus: Corpus) -> list[dict[str, Any]]:
    """The rows of the run, in order."""
    return [row for rows in each_unit(corpus.run, corpus.run.units()) for row in rows.generations.to_pylist()]


@pytest.mark.parametrize("max_rows", [1, 2, 3, 5, 8, 37, 38, 1000])
def test_files_cut_by_rows_hold_every_row_in_order_and_keep_samples_together(corpus, all_rows, max_rows):
    files, totals = corpus.compact(Cut(max_rows=max_rows))
    parts = corpus.parts()
    assert corpus.rows() == all_rows
    assert [len(part) for part in parts] == [file.num_rows for file in files]
    assert max(map(len, parts)) <= max(max_rows, 2)
    assert all(len({row["row_id"] for row in part}) * 2 == len(part) for part in parts)
    assert min(map(len, parts[:-1]), default=max_rows) >= max(max_rows - 1, 2), "a file could have held another row"
    assert totals == Totals(check_run(corpus.run).counts, content_hash(corpus.run))


@pytest.mark.parametrize("max_rows", [1, 2, 3, 4, 5])
def test_a_row_with_more_samples_than_a_file_should_have_gets_a_file_of_its_own(tmp_path, max_rows):
    corpus = Corpus(RunDirectory.create(str(tmp_path / "run"), RUN, [unit(0)]), tmp_path / "out")
    rows = [generation(unit(0).row_id(i), sample) for i, count in enumerate((5, 4, 1)) for sample in range(count)]
    commit_rows(corpus.run, unit(0), rows, [])
    files, _ = corpus.compact(Cut(max_rows=max_rows))
    assert [file.num_rows for file in files] == ([5, 5] if max_rows == 5 else [5, 4, 1])


@pytest.mark.parametrize("num_bytes", [1, 9000, 20_000, 10**9])
def test_a_file_cut_by_bytes_ends_at_that_size(corpus, all_rows, num_bytes):
    files, _ = corpus.compact(Cut(num_bytes=num_bytes))
    assert corpus.rows() == all_rows
    assert all(file.num_bytes >= num_bytes for file in files[:-1])
    assert len(files) == {1: 19, 10**9: 1}.get(num_bytes, len(files))
    assert num_bytes == 1 or all(file.num_bytes < 2 * num_bytes + 8000 for file in files), "footer and last row group"


def test_files_have_checksums_sorted_row_groups_and_the_schema_of_the_run(corpus):
    corpus.compact()
    path = corpus.out / "data/part-00000.parquet"
    file = pq.ParquetFile(path)
    assert file.schema_arrow.equals(generations_schema({}))
    group = file.metadata.row_group(0)
    assert [column.column_index for column in group.sorting_columns] == [0, 1]
    assert group.column(0).compression == "ZSTD"
    content = bytearray(path.read_bytes())
    content[_last_byte(path, column=5)] ^= 1
    with pytest.raises(OSError, match="CRC"):
        pq.ParquetFile(pa.BufferReader(bytes(content)), page_checksum_verification=True).read()


def test_the_note_names_the_run_its_counts_and_every_file(corpus):
    files, totals = corpus.compact()
    expected = {"source": corpus.run.location.name, "run": corpus.run.manifest.token, "complete": True}
    expected |= {"counts": totals.counts.to_dict(), "content_hash": content_hash(corpus.run)}
    assert corpus.note | expected == corpus.note
    assert corpus.note["files"] == [asdict(file) for file in files]
    assert all(file.num_bytes == (corpus.out / file.name).stat().st_size for file in files)
    assert {path.name for path in corpus.out.iterdir()} == {"_dray.json", "data"}


def test_error_rows_are_compacted_if_asked_for_and_stale_ones_are_not(corpus):
    write_errors(corpus.run, 2, [1, 2])  # a retry of row 2 died before it deleted this
    files, totals = corpus.compact(Cut(max_rows=1), include_errors=True)
    assert [row["row_id"] for part in corpus.parts("errors") for row in part] == [unit(2).row_id(1), unit(5).row_id(1)]
    assert [file.name for file in files[-2:]] == ["errors/part-00000.parquet", "errors/part-00001.parquet"]
    assert totals.counts.num_errors == 2


def test_a_run_whose_rows_all_failed_becomes_one_file_without_rows(tmp_path):
    corpus = Corpus(RunDirectory.create(str(tmp_path / "run"), RUN, [unit(0)]), tmp_path / "out")
    commit_rows(corpus.run, unit(0), [], [error(unit(0), i) for i in range(3)])
    (file,), totals = corpus.compact()
    assert (file.num_rows, totals.counts.num_errors) == (0, 3)
    assert pq.read_schema(corpus.out / "data/part-00000.parquet").equals(generations_schema({}))


def test_compaction_does_not_touch_the_run(corpus):
    before = written(Path(corpus.run.location.path))
    corpus.compact(include_errors=True)
    assert written(Path(corpus.run.location.path)) == before


@pytest.mark.parametrize("num_files", [0, 1, 3])
def test_an_interrupted_compaction_starts_from_the_beginning_and_leaves_none_of_its_files(corpus, tmp_path, num_files):
    out, undisturbed = corpus.out, tmp_path / "undisturbed"
    Corpus(corpus.run, undisturbed).compact(Cut(max_rows=8))
    interrupted = Compaction(corpus.run, Location.parse(str(out)), Cut(max_rows=2), include_errors=True).files()
    for _ in range(num_files):
        next(interrupted)
    interrupted.close()  # type: ignore[attr-defined]
    assert not corpus.note["complete"]
    (out / "errors").mkdir()
    (out / "errors/part-00000.parquet").write_bytes(b"of the interrupted compaction")
    (out / "data").mkdir(exist_ok=True)
    (out / "data" / f"part-{num_files:05d}.parquet.{'0' * 32}").write_bytes(b"half a file")
    corpus.compact(Cut(max_rows=8))
    assert written(out).keys() == written(undisturbed).keys()
    for path in (undisturbed / "data").iterdir():
        assert (out / "data" / path.name).read_bytes() == path.read_bytes()


def test_a_file_that_cannot_be_written_leaves_no_partial_file(corpus, monkeypatch):
    generations = Compaction._generations

    def fail_at_the_fourth(self: Compaction) -> Iterator[pa.Table]:
        for number, table in enumerate(generations(self)):
            if number == 3:
                raise OSError("the store is away")
            yield table

    monkeypatch.setattr(Compaction, "_generations", fail_at_the_fourth)
    with pytest.raises(OSError, match="the store is away"):
        corpus.compact(Cut(max_rows=1000))
    assert written(corpus.out) == {}
    assert not corpus.note["complete"]


def test_a_destination_with_foreign_files_is_refused_and_not_touched(corpus, tmp_path):
    out = corpus.out
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"is not empty and is no compaction: it has \['mine.txt'\]"):
        corpus.compact()
    assert [path.name for path in out.iterdir()] == ["mine.txt"]
    (out / "mine.txt").unlink()
    (out / "data").mkdir()
    (out / "data/part-00000.parquet").write_bytes(b"x")
    with pytest.raises(ValueError, match="is not empty and is no compaction"):
        corpus.compact()
    with pytest.raises(ValueError, match="is a file; the destination must be a folder"):
        Corpus(corpus.run, out / "data/part-00000.parquet").begin()
    for place in ("run", "run/errors", "run/new"):
        with pytest.raises(ValueError, match="is inside the run"):
            Corpus(corpus.run, tmp_path / place).begin()


def test_a_complete_compaction_is_there_already_and_is_left_as_it_is(corpus):
    out = corpus.out
    corpus.compact(include_errors=True)
    before, note = written(out), corpus.note
    with pytest.raises(AlreadyCompacted, match="holds this compaction already, complete in 5 files"):
        corpus.compact(include_errors=True)
    assert (written(out), corpus.note) == (before, note)
    (out / "data/part-00001.parquet").write_bytes(b"shorter")
    (out / "data/part-00002.parquet").rename(out / "data/part-00099.parquet")
    changed = "but its files are not as they were written: .*part-00001.parquet, .*part-00002.*, .*part-00099.*;"
    with pytest.raises(ValueError, match=changed):
        corpus.compact(include_errors=True)


def test_a_destination_of_another_run_or_another_complete_compaction_is_refused(corpus, tmp_path):
    corpus.compact()
    before, note = written(corpus.out), corpus.out / "_dray.json"
    refusal = "holds a complete compaction of this run already, but "
    with pytest.raises(ValueError, match=refusal + r"with other options \(rows_per_file\)"):
        corpus.compact(Cut(max_rows=9))
    with pytest.raises(ValueError, match=refusal + r"with other options \(include_errors\)"):
        corpus.compact(include_errors=True)
    amend_part(corpus.run, unit(5), generations(sound_rows(unit(5), [1])), [])
    with pytest.raises(ValueError, match=refusal + "the run has changed since"):
        corpus.compact()
    other = Corpus(make_run(str(tmp_path / "other")), corpus.out)
    note.write_text(json.dumps(corpus.note | {"complete": False}))
    with pytest.raises(ValueError, match=rf"holds another run, {corpus.run.location.name};"):
        other.compact()
    note.write_text("{")
    with pytest.raises(ValueError, match="is not of this version, or damaged"):
        corpus.compact()
    assert written(corpus.out) == before


def test_a_run_that_changes_during_its_compaction_is_refused_at_the_end(corpus):
    compaction, files = corpus.begin()
    amend_part(corpus.run, unit(5), generations(sound_rows(unit(5), [1])), [])
    with pytest.raises(ValueError, match="changed while it was compacted"):
        compaction.finish(files)


def test_a_row_that_is_lost_moved_or_altered_during_compaction_is_found_at_the_end(corpus, monkeypatch):
    take = RowQueue.take

    def lost(table: pa.Table) -> pa.Table:
        return table.slice(2)

    def moved(table: pa.Table) -> pa.Table:
        return table.take([1, 0, *range(2, table.num_rows)])

    def altered(table: pa.Table) -> pa.Table:
        rows = table.to_pylist()
        rows[0]["token_ids"][0] += 1
        return pa.Table.from_pylist(rows, schema=table.schema)

    for change in (lost, moved, altered):
        monkeypatch.setattr(RowQueue, "take", lambda *args, change=change: [change(table) for table in take(*args)])
        with pytest.raises(ValueError, match=r"its files hold .* and the run holds"):
            corpus.compact(Cut(max_rows=1000))
        assert not corpus.note["complete"]


@pytest.mark.parametrize("name", ["data/part-00099.parquet", "errors/part-00000.parquet", "data/notes.parquet"])
def test_a_foreign_file_in_the_destination_is_named_at_the_end_and_not_touched(corpus, name):
    out = corpus.out
    compaction, files = corpus.begin()
    (out / name).parent.mkdir(exist_ok=True)
    (out / name).write_bytes((out / "data/part-00000.parquet").read_bytes())
    with pytest.raises(ValueError, match=rf"out also has \['{name}'\], which are not of this compaction .*delete them"):
        compaction.finish(files)
    assert (out / name).exists()
    assert not corpus.note["complete"]


@pytest.mark.parametrize("folder", ["data", "errors"])
def test_a_file_that_is_damaged_before_the_end_is_named(corpus, folder):
    compaction, files = corpus.begin(include_errors=True)
    path = corpus.out / folder / "part-00000.parquet"
    content = bytearray(path.read_bytes())
    content[_last_byte(path, column=0)] ^= 1
    path.write_bytes(content)
    with pytest.raises(OSError, match=rf"{folder}/part-00000\.parquet cannot be read back: .*run the same command"):
        compaction.finish(files)
    corpus.compact()


def test_memory_does_not_grow_with_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr("pipeline.export.compacted_file._ROW_GROUP_BYTES", 200_000)
    peaks = []
    for num_units in (12, 48):
        units = [unit(i, num_rows=50) for i in range(num_units)]
        corpus = Corpus(RunDirectory.create(str(tmp_path / f"run-{num_units}"), RUN, units), tmp_path / f"{num_units}")
        for work_unit in units:
            rows = [generation(work_unit.row_id(i), text=f"{i} of {work_unit.unit_id} " * 100) for i in range(50)]
            commit_rows(corpus.run, work_unit, rows, [])
        usual, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
        pa.set_memory_pool(pool)
        try:
            (file,), _ = corpus.compact(Cut(max_rows=10**9))
        finally:
            pa.set_memory_pool(usual)
        assert pq.ParquetFile(corpus.out / file.name).num_row_groups > num_units / 8
        peaks.append(pool.max_memory())
    assert peaks[1] < 1.5 * peaks[0]


def test_a_run_in_an_object_store_is_compacted_to_a_folder_and_a_run_in_a_folder_to_a_store(s3_folder, corpus):
    files, totals = Corpus(make_run(Location.parse(s3_folder)), corpus.out).compact(include_errors=True)
    destination = Location.parse(s3_folder.replace("/folder", "/compacted"))
    interrupted = Compaction(corpus.run, destination, TEN_ROWS, include_errors=True).files()
    next(interrupted)
    interrupted.close()  # type: ignore[attr-defined]
    compaction = Compaction(corpus.run, destination, TEN_ROWS, include_errors=True)
    assert compaction.finish(list(compaction.files())) == totals
    for file in files:
        content = destination.child(file.name).read_bytes()
        assert pq.read_table(pa.BufferReader(content)).equals(pq.read_table(corpus.out / file.name))


def test_integer_ids_are_integers_in_a_compaction(tmp_path):
    corpus = Corpus(run_with_integer_ids(str(tmp_path / "run")), tmp_path / "out")
    corpus.compact(include_errors=True)
    ids = {folder: pq.read_table(corpus.out / folder)["id"].to_pylist() for folder in ("data", "errors")}
    assert ids == {"data": [70], "errors": [71, 72]}
