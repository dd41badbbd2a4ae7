"""A tally counts each committed row once, under its values, and reads no more than that needs."""

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.counts import COUNTED_COLUMNS, SCORED_COLUMNS, Counts, Scores, count_generations, count_scores
from pipeline.inputs.carried import types_to_dict
from pipeline.run.check import check_run
from pipeline.run.directory import RunDirectory
from pipeline.run.unit_rows import tally
from pipeline.storage import parquet
from pipeline.storage.retries import RetryPolicy
from tests.pipeline.made_up import RUN, commit_rows, generation, unit

SCORE = {"candidate": 0, "logprob": -3.0, "perplexity": 1.8, "is_greedy": True, "probability": 0.5, "is_best": False}
SCORE |= {"candidate_logprobs": None, "candidate_probabilities": None}


def _counts(run: RunDirectory, *by: str) -> dict[tuple[str, ...], Counts]:
    return tally(run, by, COUNTED_COLUMNS, count_generations)


def test_groups_add_up_to_the_rows_of_all_parts(finished_run):
    by_sample = _counts(finished_run, "sample")
    assert list(by_sample) == [("0",), ("1",)]
    whole = replace(check_run(finished_run).counts, num_rows=5, num_errors=0)
    assert sum(by_sample.values(), Counts()) == _counts(finished_run)[()] == whole
    assert [*_counts(finished_run, "sample", "finish_reason")] == [("0", "length"), ("1", "length")]


def test_numbers_are_in_the_order_of_numbers_and_texts_come_behind_them(tmp_path):
    carried = {"size": pa.float64(), "name": pa.string()}
    said = {**RUN, "task": "score", "has_draft_version": False, "carried": types_to_dict(carried)}
    run = RunDirectory.create(str(tmp_path / "run"), said, [unit(0), unit(1)])
    sizes: list[Any] = [10.0, None, 2.0, float("nan"), -1.5, 2.0]
    for number in (0, 1):
        rows = [
            {
                **generation(unit(number).row_id(row)),
                **SCORE,
                "size": sizes[3 * number + row],
                "name": f"{10 - 8 * row}",
            }
            for row in range(3)
        ]
        commit_rows(run, unit(number), [{k: v for k, v in row.items() if k != "draft_version"} for row in rows], [])
    found = tally(run, ["size"], SCORED_COLUMNS, count_scores)
    assert [size for (size,) in found] == ["-1.5", "2.0", "10.0", "(none)", "nan"]
    assert found["2.0",] == Scores(2, 10, -6.0, 2, 0)
    assert [*tally(run, ["name"], SCORED_COLUMNS, count_scores)] == [("-6",), ("10",), ("2",)], "these are texts"


def test_texts_are_not_read_and_a_damaged_part_is_named(finished_run):
    part = Path(finished_run.part_path(0).path)
    whole, content = _counts(finished_run), bytearray(part.read_bytes())
    text = next(column for column in _columns(part) if column.path_in_schema == "text")
    content[(text.dictionary_page_offset or text.data_page_offset) + text.total_compressed_size - 1] ^= 1
    part.write_bytes(content)
    assert _counts(finished_run) == whole
    part.write_bytes(b"PAR1 and no more")
    with pytest.raises(ValueError, match=r"part-000000000\.parquet: damaged .*dray verify says more"):
        _counts(finished_run)


def test_a_transient_error_of_the_storage_is_tried_again(finished_run, monkeypatch):
    patient = replace(finished_run.location, retries=RetryPolicy(first_wait_s=0.0))
    whole, real, failures = _counts(finished_run), pq.ParquetFile, [OSError(errno.EIO, "the disk is away")]

    def flaky(*args: Any, **options: Any) -> pq.ParquetFile:
        if failures:
            raise failures.pop()
        return real(*args, **options)

    monkeypatch.setattr(parquet.pq, "ParquetFile", flaky)
    assert _counts(replace(finished_run, location=patient)) == whole
    assert not failures


def test_a_run_without_parts_has_no_groups_and_its_columns_are_known(tmp_path):
    run = RunDirectory.create(str(tmp_path / "run"), RUN, [unit()])
    assert _counts(run, "sample") == _counts(run) == {}
    with pytest.raises(ValueError, match="no column 'colour'; it has row_id, sample, id"):
        _counts(run, "colour")


def _columns(part: Path) -> list[Any]:
    group = pq.ParquetFile(part).metadata.row_group(0)
    return [group.column(index) for index in range(group.num_columns)]
