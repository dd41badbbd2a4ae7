"""What processes read of a run is what one process reads of it, in the same order, and as a stream."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.counts import COUNTED_COLUMNS, count_generations
from pipeline.logs import Event
from pipeline.run import reading
from pipeline.run.check import CheckReport, check_run
from pipeline.run.directory import RunDirectory
from pipeline.run.reading import by_chunks
from pipeline.run.unit_rows import tally
from pipeline.storage.location import Location
from tests.pipeline.made_up import RUN, commit_rows, committed_run, error, sound_rows, unit, write_errors

NUM_UNITS = 23
_CHUNK = 4


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let two processes read small chunks of any run."""
    monkeypatch.setattr(reading, "_FEWEST", 0)
    monkeypatch.setattr(reading, "_CHUNK", _CHUNK)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})


@pytest.fixture
def damaged_run(tmp_path: Path) -> RunDirectory:
    """A run with each kind of damage, in chunks of their own and in shared ones."""
    run = RunDirectory.create(str(tmp_path / "run"), RUN, map(unit, range(NUM_UNITS)))
    for number in set(range(NUM_UNITS)) - {5, 22}:
        failed = [1] if number % 3 == 0 else []
        rows = sound_rows(unit(number), sorted({0, 1, 2} - {*failed}))
        if number == 7:
            rows[0]["num_draft_tokens"] = 2  # it accepted 3
        commit_rows(run, unit(number), rows, [error(unit(number), index) for index in failed])
    write_errors(run, 8, [0, 1])  # whose rows are in its part, too
    Path(run.part_path(2).path).write_bytes(b"PAR1 and no more")
    Path(run.part_path(16).path).write_bytes(Path(run.part_path(17).path).read_bytes())
    Path(run.location.child("data/part-000000099.parquet").path).write_bytes(b"")
    Path(run.location.child("errors/notes.txt").path).write_bytes(b"")
    return run


def test_a_check_by_processes_names_the_same_problems_in_the_same_order(damaged_run, request):
    alone = check_run(damaged_run)
    assert len(alone.problems) >= 6
    assert [*alone.damaged] == [
        *("data/part-000000002.parquet", "data/part-000000007.parquet", "data/part-000000016.parquet"),
        *("data/part-000000099.parquet", "errors/notes.txt"),
    ]
    assert (alone.num_units, alone.num_committed_units, len(alone.notes)) == (NUM_UNITS, NUM_UNITS - 2, 1)
    request.getfixturevalue("many")
    assert check_run(damaged_run) == alone


@pytest.mark.usefixtures("many")
def test_a_check_by_processes_reads_any_storage(anywhere: Location):
    report = check_run(committed_run(anywhere))
    assert report == CheckReport(counts=report.counts, num_units=2, num_committed_units=2)
    assert (report.counts.num_rows, report.counts.num_errors) == (6, 1)


def test_a_tally_by_processes_is_that_of_one_and_names_a_damaged_part(damaged_run, request):
    for number in (2, 16, 99):
        Path(damaged_run.part_path(number).path).unlink()
    alone = tally(damaged_run, ["sample"], COUNTED_COLUMNS, count_generations)
    assert [*alone] == [("0",), ("1",)]
    request.getfixturevalue("many")
    assert tally(damaged_run, ["sample"], COUNTED_COLUMNS, count_generations) == alone
    Path(damaged_run.part_path(21).path).write_bytes(b"PAR1 and no more")
    with pytest.raises(ValueError, match=r"part-000000021\.parquet: damaged"):
        tally(damaged_run, ["sample"], COUNTED_COLUMNS, count_generations)


@pytest.mark.parametrize("by_processes", [False, True])
def test_a_few_chunks_are_in_memory_however_many_there_are(finished_run, request, by_processes):
    if by_processes:
        request.getfixturevalue("many")
    size, ahead = (_CHUNK, 4) if by_processes else (reading._CHUNK, 1)
    taken: list[int] = []
    items = (taken.append(item) or item for item in range(40 * size))  # type: ignore[func-returns-value]
    results = by_chunks(_sum_of, finished_run, items, 40 * size if by_processes else 0)
    for number, total in enumerate(results):
        assert total == sum(range(number * size, (number + 1) * size)), "chunks are in order"
        assert len(taken) <= (number + ahead) * size
    assert len(taken) == 40 * size


def _sum_of(run_directory: RunDirectory, items: list[int]) -> int:
    assert run_directory.manifest.num_units == 2
    print("what is printed is no answer")  # noqa: T201 - as a library may
    return sum(items)


@pytest.mark.usefixtures("many")
def test_a_process_that_dies_is_an_error_and_what_it_warned_of_is_logged_here(finished_run, caplog):
    found = by_chunks(_warn_or_die, finished_run, ["first", "second", "third", "fourth", "die"], 5)
    assert next(found) == 4
    assert "storage is late times=4" in caplog.messages
    with pytest.raises(OSError, match="a process that reads parts ended with code 7"):
        next(found)


def _warn_or_die(_: RunDirectory, items: list[str]) -> int:
    if items == ["die"]:
        os._exit(7)
    logging.getLogger("pipeline").warning(Event("storage is late", times=len(items)))
    return len(items)


def test_a_users_script_is_not_run_again_by_processes(finished_run, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "print('begun')\n"
        "from pipeline.run import check, directory, reading\n"
        "reading._FEWEST = 0\n"
        "print(check.check_run(directory.RunDirectory.open(sys.argv[1])).problems)\n"
    )
    root = str(Path(__file__).parents[3])
    done = subprocess.run(
        [sys.executable, script, finished_run.location.path],
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "begun\n[]\n"
