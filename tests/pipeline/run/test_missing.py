"""MissingUnits yields every missing unit once, and large ones first, so that none of them is left for the end."""

import pickle
from dataclasses import replace
from pathlib import Path

from pipeline.run.directory import RunDirectory
from pipeline.run.progress.missing import MissingUnits
from tests.pipeline.made_up import RUN, commit_rows, committed_run, sound_rows, unit


def run_of_sizes(path: Path, sizes: list[int]) -> RunDirectory:
    units = [replace(unit(unit_id), estimated_tokens=size) for unit_id, size in enumerate(sizes)]
    return RunDirectory.create(str(path), RUN, units)


def test_iterating_yields_every_missing_unit_once_and_always_in_the_same_order(tmp_path):
    run_directory = run_of_sizes(tmp_path / "run", [i * 37 % 101 for i in range(100)])
    for done in (0, 1, 50, 99):
        commit_rows(run_directory, unit(done), sound_rows(unit(done), [0, 1, 2]), [])
    missing = MissingUnits.of(run_directory, 5)
    in_order = [each.unit_id for each in missing]
    assert sorted(in_order) == sorted(set(range(100)) - {0, 1, 50, 99})
    assert (missing.num_units, missing.num_rows) == (96, 288)
    assert [each.unit_id for each in pickle.loads(pickle.dumps(missing))] == in_order
    commit_rows(run_directory, unit(7), sound_rows(unit(7), [0, 1, 2]), [])
    assert [each.unit_id for each in missing] == in_order, "what is committed later changes nothing"


def test_the_largest_units_come_first_and_the_last_window_is_as_long_as_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr("pipeline.run.progress.missing._UNITS_PER_WINDOW", 10)
    sizes = [10 + i * 7 % 13 for i in range(20)] + [1000]  # a window of 10, another, and one of the giant alone
    in_order = [each.estimated_tokens for each in MissingUnits.of(run_of_sizes(tmp_path / "run", sizes), 1)]
    assert sorted(in_order) == sorted(sizes)
    windows = [in_order[:7], in_order[7:14], in_order[14:]]
    assert all(window == sorted(window, reverse=True) for window in windows)
    assert windows[-1][0] == 1000


def test_a_units_size_includes_the_tokens_that_its_rows_may_generate(tmp_path):
    units = [replace(unit(0), num_rows=1, estimated_tokens=90), replace(unit(1), num_rows=9, estimated_tokens=10)]
    run_directory = RunDirectory.create(str(tmp_path / "run"), RUN, units)
    assert [each.unit_id for each in MissingUnits.of(run_directory, 1)] == [0, 1]
    assert [each.unit_id for each in MissingUnits.of(run_directory, 100)] == [1, 0]


def test_a_finished_run_has_no_missing_units(tmp_path):
    missing = MissingUnits.of(committed_run(tmp_path / "run"), 1)
    assert (list(missing), missing.num_units, missing.num_rows) == ([], 0, 0)
