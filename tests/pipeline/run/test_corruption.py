"""Every corruption of a file is found by the check or harmless, and repair redoes exactly the damaged units."""

import json
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline.run import check as check_module
from pipeline.run.check import check_run, quarantine
from pipeline.run.directory import RunDirectory
from pipeline.run.fingerprint import content_hash
from pipeline.storage.location import Location
from tests.damage import damage
from tests.pipeline.made_up import RUN, commit_rows, committed_run, error, put, sound_rows, unit

NUM_UNITS = 6
SEEDS = range(200)
OPERATIONS = ["truncate", "flip", "flip", "flip", "empty", "swap", "delete"]  # flips are the hardest to see


def _commit(run_directory: RunDirectory, unit_id: int) -> None:
    """Commit unit `unit_id`, always with the same rows; row 1 of the odd ones fails."""
    failed = [1] if unit_id % 2 else []
    rows = sound_rows(unit(unit_id), [index for index in range(3) if index not in failed])
    commit_rows(run_directory, unit(unit_id), rows, [error(unit(unit_id), index) for index in failed])


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pristine") / "run"
    run_directory = RunDirectory.create(str(path), RUN, [unit(i) for i in range(NUM_UNITS)])
    for unit_id in range(NUM_UNITS):
        _commit(run_directory, unit_id)
    assert check_run(run_directory).is_complete
    return path


def _files(run: Path) -> list[Path]:
    parts = [path for folder in ("data", "errors", "manifest") for path in sorted((run / folder).iterdir())]
    return [*parts, run / "run.json"]


def _corrupt(run: Path, seed: int) -> tuple[str, list[Path]]:
    """Damage one file, or swap two of a kind, as the seed says; return what was done and the files that changed."""
    rng = random.Random(seed)
    operation = rng.choice(OPERATIONS)
    path = rng.choice(_files(run))
    if operation == "swap":
        path, other = rng.sample([file for file in _files(run) if file.parent.name in ("data", "errors")], 2)
        content = path.read_bytes()
        path.write_bytes(other.read_bytes())
        other.write_bytes(content)
        return operation, [path, other]
    damage(path, operation, rng)
    return operation, [path]


def _tables(run: Path) -> dict[str, Any]:
    """Return every row of data and errors."""
    parts = [path for path in _files(run) if path.parent.name in ("data", "errors")]
    return {str(path.relative_to(run)): pq.ParquetFile(path).read().to_pylist() for path in parts}


def test_every_corruption_is_found_or_harmless_and_repair_redoes_exactly_the_damaged_units(pristine, tmp_path):
    expected, whole = _tables(pristine), content_hash(RunDirectory.open(str(pristine)))
    outcomes: Counter[tuple[str, str]] = Counter()
    for seed in SEEDS:
        run = tmp_path / str(seed)
        shutil.copytree(pristine, run)
        operation, changed = _corrupt(run, seed)
        what = f"seed {seed}: {operation} of {[str(path.relative_to(run)) for path in changed]}"
        kind = "plan" if changed[0].parent.name in ("manifest", run.name) else "rows"
        try:
            run_directory = RunDirectory.open(str(run))
            report = check_run(run_directory)
        except ValueError as failure:
            text = str(failure)
            assert kind == "plan", what
            assert changed[0].name in text or "no run here" in text, what
            outcomes[kind, "found"] += 1
            shutil.rmtree(run)
            continue
        if report.is_complete:
            assert _tables(run) == expected, what
            assert content_hash(run_directory) == whole, what
            outcomes[kind, "harmless"] += 1
            shutil.rmtree(run)
            continue
        outcomes[kind, "found"] += 1
        damaged_units = {path.name[5:14] for path in changed}
        untouched = {path: path.read_bytes() for path in _files(run) if path.name[5:14] not in damaged_units}
        moved = quarantine(run_directory, report.damaged)
        assert all((run / name).exists() and (run / f"{name}.json").exists() for name in moved), what
        missing = [work_unit.unit_id for work_unit in run_directory.missing_units()]
        assert missing == sorted(map(int, damaged_units)), what
        for unit_id in missing:
            _commit(run_directory, unit_id)
        again = check_run(run_directory)
        assert (again.problems, again.notes, again.damaged) == ([], [], {}), what
        assert _tables(run) == expected, what
        assert all(path.read_bytes() == data for path, data in untouched.items()), what
        shutil.rmtree(run)
    assert sum(outcomes.values()) == len(SEEDS)
    assert outcomes["rows", "found"] > 5 * outcomes["rows", "harmless"], outcomes  # a flip of unused bytes is harmless
    assert outcomes["plan", "found"] > 20, outcomes


@pytest.mark.parametrize("column", ["text", "prompt", "id"])
def test_a_flip_of_any_byte_in_a_column_is_found_or_harmless(pristine, tmp_path, column):
    """A flip is found even in a column whose values only the page's checksum can verify."""
    run = tmp_path / "run"
    shutil.copytree(pristine, run)
    part, run_directory = run / "data" / "part-000000000.parquet", RunDirectory.open(str(run))
    content, rows = part.read_bytes(), pq.ParquetFile(part).read().to_pylist()
    metadata = pq.ParquetFile(part).metadata.row_group(0)
    chunks = [metadata.column(index) for index in range(metadata.num_columns)]
    (chunk,) = [chunk for chunk in chunks if chunk.path_in_schema == column]
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    num_found = 0
    for position in range(start, start + chunk.total_compressed_size):
        part.write_bytes(content[:position] + bytes([content[position] ^ 4]) + content[position + 1 :])
        is_found = "data/part-000000000.parquet" in check_run(run_directory).damaged
        assert is_found or pq.ParquetFile(part).read().to_pylist() == rows, position
        num_found += is_found
    assert num_found > chunk.total_compressed_size // 2  # the rest is in page headers, which nothing needs


def test_error_rows_with_a_renamed_column_are_damaged(finished_run):
    path = finished_run.errors_path(1).path
    table = pq.ParquetFile(path).read()
    pq.write_table(table.rename_columns([name.replace("message", "massage") for name in table.column_names]), path)
    assert list(check_run(finished_run).damaged) == ["data/part-000000001.parquet", "errors/part-000000001.parquet"]


def test_repair_keeps_the_files_and_their_reasons_and_never_overwrites_an_older_one(anywhere):
    run_directory = committed_run(anywhere)
    run_directory.mark_success()
    for number in ("", ".1"):
        put(run_directory.part_path(1), b"not Parquet")
        moved = quarantine(run_directory, check_run(run_directory).damaged)
        assert moved == [f"quarantine/{folder}/part-000000001.parquet{number}" for folder in ("data", "errors")]
        assert run_directory.location.child(moved[0]).read_bytes() == b"not Parquet"
        reason = json.loads(run_directory.location.child(f"{moved[0]}.json").read_bytes())
        assert "damaged, or no part of a run" in reason["reason"]
        assert not run_directory.is_success()
        assert [work_unit.unit_id for work_unit in run_directory.missing_units()] == [1]
        _commit(run_directory, 1)
        assert check_run(run_directory).is_complete
    assert quarantine(run_directory, {}) == []


def test_a_foreign_file_goes_into_quarantine_and_the_run_is_complete(finished_run):
    Path(finished_run.location.child("data/notes.txt").path).write_text("mine")
    report = check_run(finished_run)
    assert report.damaged == {"data/notes.txt": "not a part of this run"}
    assert quarantine(finished_run, report.damaged) == ["quarantine/data/notes.txt"]
    assert Path(finished_run.location.child("quarantine/data/notes.txt").path).read_text() == "mine"
    assert check_run(finished_run).is_complete


def test_a_half_done_quarantine_can_be_repeated(finished_run, monkeypatch):
    Path(finished_run.errors_path(1).path).write_bytes(b"")
    damaged = check_run(finished_run).damaged
    assert list(damaged) == ["data/part-000000001.parquet", "errors/part-000000001.parquet"]
    move = check_module._move

    def fail_at_errors(source: Location, target: Location) -> None:
        if "/errors/" in source.path:
            raise OSError("planted")
        move(source, target)

    monkeypatch.setattr(check_module, "_move", fail_at_errors)
    with pytest.raises(OSError, match="planted"):
        quarantine(finished_run, damaged)
    assert finished_run.committed_unit_ids() == {0}  # the unit's part went first
    _commit(finished_run, 1)
    assert check_run(finished_run).is_complete
