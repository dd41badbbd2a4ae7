"""The failed rows of a run are counted, and those that are wanted are found again."""

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.errors import ErrorRow, Stage
from pipeline.run.dead_letters import DeadLetters, FailedUnits, Wanted, find_dead_letters
from pipeline.run.directory import RunDirectory
from tests.pipeline.made_up import RUN, commit_rows, error, sound_rows, unit


def _error(unit_id: int, index: int, stage: Stage, kind: str) -> ErrorRow:
    return replace(error(unit(unit_id), index, f"{stage} of {index}"), stage=stage, error_type=kind)


@pytest.fixture
def run_directory(tmp_path: Path) -> RunDirectory:
    """A run of 4 units: 0 has failed rows of three kinds, 1 none, 2 one; 3 has errors and is not committed."""
    run_directory = RunDirectory.create(str(tmp_path), RUN, [unit(i) for i in range(4)])
    failed = [_error(0, 0, "read", "ValueError"), _error(0, 1, "generate", "WorkerDied")]
    commit_rows(run_directory, unit(0), [], [*failed, _error(0, 2, "generate", "ValueError")])
    commit_rows(run_directory, unit(1), sound_rows(unit(1), [0, 1, 2]), [])
    commit_rows(run_directory, unit(2), sound_rows(unit(2), [0, 1]), [_error(2, 2, "read", "ValueError")])
    commit_rows(run_directory, unit(3), [], [_error(3, index, "read", "KeyError") for index in range(3)])
    run_directory.part_path(3).remove()
    return run_directory


def test_failed_rows_are_counted_by_stage_and_type_with_an_example_of_each(run_directory):
    letters = find_dead_letters(run_directory, Wanted())
    assert letters.num_rows == {("read", "ValueError"): 2, ("generate", "WorkerDied"): 1, ("generate", "ValueError"): 1}
    assert letters.examples["read", "ValueError"] == "user-0: read of 0"
    assert letters.num_wanted == {0: 3, 2: 1}


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (Wanted(stages=("read",)), {0: 1, 2: 1}),
        (Wanted(stages=("read", "generate")), {0: 3, 2: 1}),
        (Wanted(error_types=("WorkerDied",)), {0: 1}),
        (Wanted(stages=("generate",), error_types=("ValueError",)), {0: 1}),
        (Wanted(stages=("params",)), {}),
        (Wanted(error_types=("KeyError",)), {}),  # only the attempt that did not commit has this error
    ],
)
def test_only_rows_of_a_wanted_stage_and_type_are_wanted(run_directory, wanted, expected):
    letters = find_dead_letters(run_directory, wanted)
    assert letters.num_wanted == expected
    assert letters.num_rows.total() == 4


def test_failed_rows_are_counted_by_message(run_directory):
    assert find_dead_letters(run_directory, Wanted()).messages.most_common(1) == [("read of 0", 1)]
    again = [_error(3, index, "read", "KeyError") for index in range(2)]
    commit_rows(run_directory, unit(3), [], [*again, replace(again[0], row_id=unit(3).row_id(2))])
    assert find_dead_letters(run_directory, Wanted()).messages.most_common(1) == [("read of 0", 3)]


def test_a_run_in_which_no_row_failed_has_no_dead_letters(tmp_path):
    assert find_dead_letters(RunDirectory.create(str(tmp_path), RUN, [unit(0)]), Wanted()) == DeadLetters()


def test_damaged_error_rows_are_named(run_directory):
    Path(run_directory.errors_path(2).path).write_bytes(b"PAR1 no more PAR1")
    with pytest.raises(ValueError, match=r"errors/part-000000002\.parquet: damaged"):
        find_dead_letters(run_directory, Wanted())


def test_every_iteration_yields_the_units_with_wanted_rows(run_directory):
    letters = find_dead_letters(run_directory, Wanted(stages=("read",)))
    units = FailedUnits(run_directory.location.name, letters.num_wanted)
    assert (units.num_units, units.num_rows) == (2, 2)
    assert list(units) == list(pickle.loads(pickle.dumps(units))) == [unit(0), unit(2)]
