"""`jobs.prove` counts how many of vLLM's texts change with drafts, slots and order; none of them is promised."""

import json
from pathlib import Path

import pytest

from tests.jobs.runs import wait_until
from tests.vllm.runs import VllmRun, good_rows, vllm_processes

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]


def test_texts_with_drafts_and_more_slots_are_compared_with_those_of_one_row_at_a_time(tmp_path: Path) -> None:
    run = VllmRun(tmp_path)
    bad = [
        {"id": "long", "kind": "a", "prompt": "word " * 400},
        {"id": "min_p", "kind": "a", "prompt": "x", "sampling": {"min_p": 0.5}},
    ]
    run.read([*bad, *good_rows(6)])
    path = tmp_path / "proof.json"
    flags = ("--prove.num_slots=1", "--prove.num_slots=3", "--prove.draft_lengths=3", "--sampling.temperature=0")
    code, printed = run.generate(*flags, f"--prove.json_path={path}", command="prove")
    assert code == 0, printed
    assert printed.count("is left out: ") == 2
    assert "min_p does not work in vLLM beside drafts" in " ".join(printed.split())
    found = json.loads(path.read_text())["findings"]
    settings = [(each["setting"]["drafter"], each["setting"]["num_slots"]) for each in found]
    assert settings == [("none", 1), ("none", 3), ("model", 1), ("model", 3)]
    assert [bool(each["num_draft_tokens"]) for each in found] == [False, False, True, True]
    assert all(each["num_tokens"] > 50 for each in found)
    assert "tokens in 4 settings" in printed
    wait_until(lambda: vllm_processes() == [], 60)


def test_what_cannot_be_compared_is_refused_before_an_engine_is_loaded(tmp_path: Path) -> None:
    run = VllmRun(tmp_path)
    run.read([{"id": "long", "kind": "a", "prompt": "word " * 400}])
    code, printed = run.generate(command="prove")
    assert (code, "no row of the input can be written" in printed) == (2, True)
    run.read(good_rows(1))
    code, printed = run.generate("--prove.temperatures=0", "--prove.temperatures=3", command="prove")
    assert (code, "vLLM takes at most 2" in printed) == (2, True)


def test_sampled_texts_with_drafts_differ_and_that_is_no_failure(tmp_path: Path) -> None:
    run = VllmRun(tmp_path)
    run.read(good_rows(6))
    flags = ("--prove.num_slots=3", "--prove.draft_lengths=3", "--sampling.temperature=1")
    code, printed = run.generate(*flags, command="prove")
    assert code == 0, printed
    assert "not identical, and not promised to be (docs/promise.md)" in printed
    assert "first difference of model: row" in printed
