"""`jobs.prove` on real models: no drafter changes a token or an end, whatever is asked of the rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jobs import prove
from tests.jobs.runs import write_jsonl

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]
CHATS = [
    "Write a short story about a raven.",
    "List three facts about the moon.",
    "Describe a city as a JSON object with a title, a kind and a count.",
    "What is 17 + 25? Explain.",
    "Write a Python function that adds two numbers.",
    "Translate 'good morning' into French, Spanish and German.",
]


def _chats(count: int) -> list[dict[str, Any]]:
    return [{"messages": [{"role": "user", "content": text}]} for text in (CHATS * count)[:count]]


def _proved(folder: Path, target: str, rows: list[dict[str, Any]], *flags: str) -> dict[str, Any]:
    """Return the findings of a proof in which nothing differs."""
    write_jsonl(folder / "in.jsonl", rows)
    path = folder / "proof.json"
    command = [
        f"--input.path={folder / 'in.jsonl'}",
        f"--output.path={folder / 'out'}",
        f"--models.target={target}",
        "--engine.max_model_len=512",
        f"--prove.json_path={path}",
        *flags,
    ]
    assert prove.main(command) == 0
    result: dict[str, Any] = json.loads(path.read_text())
    assert result["num_different_rows"] == 0
    return result


def test_drafts_change_nothing_in_a_few_chats_of_smollm2_with_a_form_calls_and_a_thought(
    tmp_path: Path, smollm2: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--sampling.max_tokens=24", "--prove.drafters=suffix", "--prove.draft_lengths=4", "--prove.num_slots=4"]
    flags += [f"--prove.asked={name}" for name in ("json_schema", "hermes_forced", "thought")]
    result = _proved(tmp_path, smollm2, _chats(2), *flags, "--prove.every_setting", "--sampling.temperature=0.8")
    assert result["num_tokens"] > 200
    assert ", dequantized from Q4_1 to float32" in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0, 0.8])
def test_no_drafter_changes_chats_of_smollm2_whatever_is_asked(
    tmp_path: Path, smollm2: str, temperature: float
) -> None:
    flags = ["--sampling.max_tokens=24", "--prove.draft_lengths=4", "--prove.num_slots=8"]
    flags += ["--prove.asked=mixed", "--prove.num_prompts=27", f"--sampling.temperature={temperature}"]
    assert _proved(tmp_path, smollm2, _chats(27), *flags)["num_tokens"] > 2_000


@pytest.mark.slow
def test_no_drafter_changes_texts_of_gemma(tmp_path: Path, gemma3: str) -> None:
    rows = [{"prompt": f"Question: {text}\nAnswer:"} for text in CHATS[:4]]
    flags = ["--sampling.max_tokens=20", "--prove.draft_lengths=4", "--prove.num_slots=4", "--prove.drafters=suffix"]
    flags += ["--prove.asked=nothing", "--prove.asked=json_schema", "--sampling.temperature=0.8"]
    assert _proved(tmp_path, gemma3, rows, *flags)["num_tokens"] > 200
