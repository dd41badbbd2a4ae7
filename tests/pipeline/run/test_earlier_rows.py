"""The rows of an earlier run are found by id, or by place, and ids are read only where rows have moved."""

from pathlib import Path

import pytest

from pipeline.run.directory import RunDirectory
from pipeline.run.earlier_rows import EarlierRows
from tests.pipeline.made_up import RUN, commit_rows, generation, unit

IDS = ["a", "b", None, "c", "twice", "twice", "d", "e", "f"]


@pytest.fixture
def earlier(tmp_path: Path) -> EarlierRows:
    """Three units of three rows of one file, of which the last is not committed."""
    run = RunDirectory.create(str(tmp_path / "run"), RUN, [unit(number) for number in range(3)])
    for number in range(2):
        rows = [generation(number << 32 | row, id=IDS[3 * number + row]) for row in range(3)]
        commit_rows(run, unit(number), rows, [])
    return EarlierRows(run, ["text"])


def test_ids_are_not_read_while_each_row_stands_where_it_stood(earlier, monkeypatch):
    monkeypatch.setattr(EarlierRows, "_ids", lambda self: pytest.fail("all ids were read"))
    found = [earlier.find(IDS[row], "elsewhere/prompts.jsonl", row) for row in range(6)]
    assert found == [0, 1, 2, 1 << 32, 1 << 32 | 1, 1 << 32 | 2]
    assert earlier.find(None, "prompts.jsonl", 8) == 2 << 32 | 2
    assert earlier.samples(2 << 32 | 2) == earlier.samples(None) == []
    assert [row["id"] for row in earlier.samples(1)] == ["b"]


def test_a_row_that_moved_is_found_by_its_id_and_one_of_several_by_its_place(earlier):
    assert earlier.find("c", "prompts.jsonl", 0) == 1 << 32
    assert earlier.find("c", "another.jsonl", 77) == 1 << 32
    assert earlier.find("twice", "prompts.jsonl", 0) == 0
    assert earlier.find("twice", "another.jsonl", 0) is None
    assert earlier.find("new", "prompts.jsonl", 0) is None, "the row there is another one"
    assert earlier.find(None, "prompts.jsonl", 9) is None


def test_a_damaged_part_is_told_and_its_rows_are_not_found_or_it_is_refused(earlier, tmp_path):
    (tmp_path / "run" / "data" / "part-000000000.parquet").write_bytes(b"PAR1 damaged PAR1")
    run, told = RunDirectory.open(str(tmp_path / "run")), list[str]()
    lenient = EarlierRows(run, ["text"], lambda part, error: told.append(part.short_name))
    assert lenient.find("b", "prompts.jsonl", 1) is None
    assert lenient.find("c", "prompts.jsonl", 1) == 1 << 32
    assert set(told) == {"part-000000000.parquet"}
    with pytest.raises((ValueError, OSError)):
        EarlierRows(run, ["text"]).find("b", "prompts.jsonl", 1)
