"""`jobs.prove` counts how many of vLLM's texts change with drafts, slots and order; none of them is promised."""

import json
from pathlib import Path

import pytest

from tests.vllm.runs import VllmRun, good_rows, vllm_processes

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]


def test_texts_with_drafts_and_more_slots_are_compared_with_those_of_one_row_at_a_time(tmp_path: Path) -> None:
    run = VllmRun(tmp_path)
    run.read([*good_rows(6), {"id": "long", "kind": "a", "prompt": "word " * 400}])
    path = tmp_path / "proof.json"
    flags = ("--prove.num_slots=1", "--prove.num_slots=3", "--prove.draft_lengths=3", "--sampling.temperature=0")
    code, printed = run.generate(*flags, f"--prove.json_path={path}", command="prove")
    assert code == 0, printed
    assert "row 6 of" in printed
    assert "is left out" in printed
    found = json.loads(path.read_text())["findings"]
    settings = [(each["setting"]["drafter"], each["setting"]["num_slots"]) for each in found]
    assert settings == [("none", 1), ("none", 3), ("model", 1), ("model", 3)]
    assert [bool(each["num_draft_tokens"]) for each in found] == [False, False, True, True]
    assert all(each["num_tokens"] > 50 for each in found)
    assert "tokens in 4 settings" in printed
    assert vllm_processes() == []


def test_sampled_texts_with_drafts_differ_and_that_is_no_failure(tmp_path: Path) -> None:
    run = VllmRun(tmp_path)
    run.read(good_rows(6))
    flags = ("--prove.num_slots=3", "--prove.draft_lengths=3", "--sampling.temperature=1")
    code, printed = run.generate(*flags, command="prove")
    assert code == 0, printed
    assert "not identical, and not promised to be (docs/promise.md)" in printed
    assert "first difference of model: row" in printed
