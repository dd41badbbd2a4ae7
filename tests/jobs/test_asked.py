"""Rows with forms, calls, thoughts, stop strings, penalties and log-probabilities, in runs in which something happens.

Whatever state such a row has beside its cache of keys and values, a row that is written again, elsewhere or by another
drafter must be the same row.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from jobs.driver import execution
from jobs.proving.asked import CASES, TEMPLATE
from tests.endpoint.in_process import BUNDLED
from tests.jobs.conftest import Job
from tests.jobs.faulty import fails_over
from tests.jobs.runs import errors, generations, problems

PAIR = (str(BUNDLED / "target"), str(BUNDLED / "draft"))
# A run has one format of calls, so the cases of the other families are left out.
NAMES = [name for name, case in CASES.items() if not case.chat or case.family == "hermes"]
FIXED = "--engine.draft_length=fixed"


def record(name: str, prompt: str) -> dict[str, Any]:
    """Return a row that asks what the case of this name does."""
    case = CASES[name]
    text = {"messages": [{"role": "user", "content": prompt}]} if case.chat else {"prompt": prompt}
    return {"id": name, "kind": "a", **text, **case.chat, "sampling": dict(case.sampling)}


def written(output: Path) -> list[dict[str, Any]]:
    """Return what the target wrote, without what depends on drafts and on the other rows of a round."""
    names = ("id", "text", "token_ids", "finish_reason", "stop_reason", "content", "reasoning", "tool_calls")
    rows = generations(output)
    return [{"num_logprobs": len(row["logprobs"] or ())} | {name: row[name] for name in names} for row in rows]


@pytest.fixture
def asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Job:
    """Return a run, to be made, with a row of each case; two prompts in three are unlucky."""
    job = Job(tmp_path, PAIR, capsys, is_local=True)
    job.read([record(name, f"{'unlucky' if place % 3 else 'old'} cup {place}") for place, name in enumerate(NAMES)])
    return job


@pytest.fixture
def flags(tmp_path: Path) -> tuple[str, ...]:
    """Return the flags of the run: one template, whose thoughts and calls are told apart from the text."""
    path, chat = tmp_path / "asked.json", {"chat_template": TEMPLATE, "tool_calls": "hermes", "reasoning": "think"}
    path.write_text(json.dumps({"chat": chat, "output": {"parts": True}, "sampling": {"temperature": 0.8}}))
    return (f"--config={path}", "--sampling.max_tokens=60", "--actors.max_actors=1", "--run.max_error_rate=1")


def test_failed_rows_are_retried_with_another_drafter_as_a_first_success_would_have_written_them(
    asked, flags, monkeypatch
):
    expected = written(asked.undisturbed(*flags, "--engine.drafter=none"))
    assert [row["id"] for row in expected] == NAMES
    with monkeypatch.context() as patch:
        patch.setattr(execution, "EngineWorker", fails_over("unlucky"))
        assert asked.generate(*flags, FIXED, "--engine.drafter=suffix") == 0
    failed = {row["id"] for row in errors(asked.output)}
    assert failed == {name for place, name in enumerate(NAMES) if place % 3}
    assert written(asked.output) == [row for row in expected if row["id"] not in failed]
    assert asked.retry(*flags, FIXED, "--engine.drafter=hybrid", "--engine.num_slots=4") == 0
    assert written(asked.output) == expected
    assert (errors(asked.output), problems(asked.output)) == ([], [])
    retried = [row for row in generations(asked.output) if row["id"] in failed]
    assert 0 < sum(row["num_accepted_tokens"] for row in retried) < sum(row["num_draft_tokens"] for row in retried)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.usefixtures("ray_address")
def test_a_run_goes_on_with_its_draft_elsewhere_and_with_another_drafter(asked, flags):
    asked.is_local = False
    expected = written(asked.undisturbed(*flags, "--engine.drafter=none"))
    split = ("--placement=split", "--drafts.num_cpus=0.5", "--drafts.timeout_s=30")
    assert asked.generate(*flags, FIXED, *split) == 0, asked.printed()
    assert written(asked.output) == expected
    drafted = generations(asked.output)
    assert 0 < sum(row["num_accepted_tokens"] for row in drafted) < sum(row["num_draft_tokens"] for row in drafted)
    for parts in (slice(0, 1), slice(1, 3)):
        lost = sorted(asked.output.glob("data/*.parquet"))[parts]
        for path in (asked.output / "_SUCCESS", asked.output / "report.json", *lost):
            path.unlink(missing_ok=True)
        assert asked.generate(*flags, FIXED, "--engine.drafter=suffix") == 0, asked.printed()
        assert written(asked.output) == expected
        assert problems(asked.output) == []
