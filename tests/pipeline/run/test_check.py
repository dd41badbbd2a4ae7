"""The check passes a sound run and names every corruption that is planted in one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.run.check import check_run, contradictions
from pipeline.run.directory import RunDirectory
from pipeline.run.fingerprint import content_hash
from tests.pipeline.made_up import committed_run, generation, write_errors

Rows = list[dict[str, Any]]


def _rewrite(run_directory: RunDirectory, change: Callable[[Rows], Rows], unit_id: int = 1) -> None:
    """Change the rows of a part; its footer stays."""
    path = run_directory.part_path(unit_id).path
    table = pq.ParquetFile(path).read()
    pq.write_table(pa.Table.from_pylist(change(table.to_pylist()), schema=table.schema), path)


def _set(index: int, **values: Any) -> Callable[[Rows], Rows]:
    return lambda rows: [row | values if i == index else row for i, row in enumerate(rows)]


def test_a_sound_run_has_no_problems_and_its_counts_are_those_of_its_rows(finished_run):
    report = check_run(finished_run)
    assert report.problems == report.notes == []
    assert report.is_complete
    assert (report.num_units, report.num_committed_units) == (2, 2)
    counts = report.counts
    assert (counts.num_rows, counts.num_errors, counts.num_generations, counts.num_output_tokens) == (6, 1, 10, 50)
    assert counts.accepted_per_position == (20, 10)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda rows: [*rows, rows[0]], "has samples [0, 0, 1], expected [0, 1, 2]"),
        (lambda rows: rows[2:], "rows prompts.jsonl#4 are neither in data nor in errors"),
        (lambda rows: rows[1:], "has samples [1], expected [0]"),
        (lambda rows: [*rows, generation(4294967297)], "num_errors is 1 in the footer and 0 in the rows"),
        (lambda rows: [*rows, generation(0)], "rows 0 are not of this unit"),
        (_set(0, num_draft_tokens=6), "num_draft_tokens is 20 in the footer and 21 in the rows"),
        (_set(0, num_prompt_tokens=9), "num_prompt_tokens is 8 in the footer and 13 in the rows"),
        (_set(0, num_cached_tokens=2), "num_cached_tokens is 6 in the footer and 8 in the rows"),
        (_set(0, num_cached_tokens=4), "num_cached_tokens is 4 and num_prompt_tokens 4"),
        (_set(0, num_cached_tokens=-1), "a count is negative"),
        (_set(0, num_accepted_tokens=4), "accepted_per_position sums to 3 and num_accepted_tokens is 4"),
        (_set(0, accepted_per_position=[1, 2]), "accepted_per_position increases: [1, 2]"),
        (_set(0, num_draft_tokens=2), "num_accepted_tokens is 3 and num_draft_tokens 2"),
        (_set(0, token_ids=[1]), "num_output_tokens is 5 and there are 1 token_ids"),
        (_set(0, logprobs=[0.5]), "num_output_tokens is 5 and there are 1 logprobs"),
        (_set(0, num_rounds=3), "3 accepted tokens and 3 rounds do not make 5 output tokens"),
        (_set(0, num_rounds=None), "num_rounds is null"),
        (_set(0, draft_version=None), "draft_version is None"),
        (_set(0, draft_version=-1), "draft_version is -1"),
    ],
)
def test_planted_corruption_is_named(finished_run, change, problem):
    _rewrite(finished_run, change)
    problems = check_run(finished_run).problems
    assert all(text.startswith("data/part-000000001.parquet: ") for text in problems)
    assert any(problem in text for text in problems), problems


def _round(num_accepted: int, *rejected: int) -> dict[str, Any]:
    return {"num_accepted_tokens": num_accepted, "rejected_token_ids": list(rejected)}


@pytest.mark.parametrize(
    ("rounds", "problem"),
    [
        ([], "num_rounds is 2 and its draft_rounds say 0"),
        ([_round(2, 50), _round(1)], "num_draft_tokens is 5 and its draft_rounds say 4"),
        ([_round(3), _round(0, 50, 51)], "accepted_per_position is [2, 1] and its draft_rounds say [1, 1, 1]"),
        ([_round(2), _round(2, 51)], "num_accepted_tokens is 3 and its draft_rounds say 4"),
    ],
)
def test_recorded_rounds_that_do_not_add_up_to_the_counts_are_named(tmp_path, rounds, problem):
    run_directory = committed_run(tmp_path / "run", has_rounds=True)
    assert check_run(run_directory).problems == []
    _rewrite(run_directory, _set(0, draft_rounds=None))
    assert check_run(run_directory).problems == [], "most samples have no record"
    _rewrite(run_directory, _set(0, draft_rounds=rounds))
    problems = check_run(run_directory).problems
    assert any(problem in text for text in problems), problems


def test_a_missing_part_is_named(finished_run):
    Path(finished_run.part_path(0).path).unlink()
    report = check_run(finished_run)
    assert report.problems == ["unit 0 (rows 1 on of prompts.jsonl) is missing; run again"]
    assert report.num_committed_units == 1


DATA, ERRORS = "data/part-00000000{}.parquet", "errors/part-00000000{}.parquet"


@pytest.mark.parametrize(
    ("target", "source", "problem"),
    [
        (DATA.format(1), DATA.format(0), "its footer says unit 0"),
        (ERRORS.format(0), ERRORS.format(1), "rows 4294967297 are not of this unit"),
        (ERRORS.format(1), ERRORS.format(0), "rows prompts.jsonl#5 are neither in data nor in errors"),
    ],
    ids=["a part under another unit's name", "errors of another part", "missing errors"],
)
def test_a_file_in_the_place_of_another_and_a_missing_one_are_named(finished_run, target, source, problem):
    place, other = (Path(finished_run.location.child(name).path) for name in (target, source))
    place.unlink(missing_ok=True)
    if other.exists():
        place.write_bytes(other.read_bytes())
    assert any(problem in text for text in check_run(finished_run).problems)


@pytest.mark.parametrize("name", ["data/part-000000002.parquet", "data/notes.txt", "errors/part-000000007.parquet"])
def test_a_foreign_file_is_named(finished_run, name):
    Path(finished_run.location.child(name).path).write_bytes(finished_run.part_path(0).read_bytes())
    assert check_run(finished_run).problems == [f"{name}: not a part of this run; move it away"]


def test_a_stale_error_row_is_a_note_and_no_problem(finished_run):
    write_errors(finished_run, 1, [0, 1, 2])
    report = check_run(finished_run)
    assert report.is_complete
    assert report.counts.num_errors == 1
    (note,) = report.notes
    assert note.startswith("errors/part-000000001.parquet: 2 of its rows are in data and count as generated")


def test_a_leftover_temporary_file_is_a_note_and_no_problem(finished_run):
    Path(finished_run.temporary.child("part-000000001.parquet.abc").path).write_bytes(b"x")
    report = check_run(finished_run)
    assert report.is_complete
    (note,) = report.notes
    assert note == "_tmp/part-000000001.parquet.abc: left by a process that died while writing; safe to delete"


@pytest.mark.parametrize(("finish_reason", "is_sound"), [("stop", True), ("length", False)])
def test_only_a_sequence_that_stops_by_itself_may_lack_its_last_rounds_own_token(finish_reason, is_sound):
    row = generation(0, num_output_tokens=4, token_ids=[1, 2, 3, 4], finish_reason=finish_reason)
    assert (list(contradictions(row)) == []) == is_sound
    row = generation(0, num_output_tokens=6, token_ids=[1] * 6, finish_reason=finish_reason)
    assert list(contradictions(row)) != []


def test_the_content_hash_is_of_tokens_alone(finished_run, tmp_path):
    other = committed_run(tmp_path / "other")
    assert content_hash(other) == content_hash(finished_run)
    _rewrite(other, lambda rows: rows[::-1])
    _rewrite(other, _set(0, num_rounds=5, num_accepted_tokens=0, accepted_per_position=[0], text="x"))
    assert content_hash(other) == content_hash(finished_run)


@pytest.mark.parametrize("values", [{"token_ids": [7, 8, 9, 0, 1]}, {"finish_reason": "stop"}, {"sample": 5}])
def test_the_content_hash_changes_with_any_token_sample_or_finish_reason(finished_run, values):
    before = content_hash(finished_run)
    _rewrite(finished_run, _set(0, **values))
    assert content_hash(finished_run) != before
