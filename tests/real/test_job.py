"""Jobs over SmolLM2: a process that is killed in the middle of rows, a run that goes on, a run of scores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from decoding.checkpoint.supported import model_folder
from endpoint.edge.install import EdgeSettings
from endpoint.service.service import ServiceSettings
from jobs import generate
from jobs.work import generation
from tests.endpoint.in_process import MODEL, answered, running_server, settings_of
from tests.jobs.conftest import Job
from tests.jobs.runs import content, errors, generations, problems, write_jsonl
from tests.jobs.test_structured_kill import killed_in_mid_row
from tests.real.conftest import Reference

pytestmark = [
    pytest.mark.real,
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("ray_address"),
]
SCHEMA = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 9}}, "required": ["a"]}
FORM, STRUCTURED = {"structured": {"json_schema": SCHEMA}}, {"structured_outputs": {"json": SCHEMA}}


def test_rows_whose_process_is_killed_have_the_same_text_once_and_the_endpoint_writes_it_too(
    tmp_path: Path, smollm2: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(tmp_path, (smollm2, smollm2), capsys)  # a draft that is accepted whole
    asked = ["Say hello.", "Name a bird.", "Name a colour.", "Count to five.", "What is 3 + 4?", "Name a city."]
    chats = [{"messages": [{"role": "user", "content": text}]} for text in asked * 2]
    rows = [{"id": f"row-{i}", "kind": "a", **chat, "sampling": {**FORM, "seed": i}} for i, chat in enumerate(chats)]
    job.read(rows)
    flags = ("--sampling.temperature=0.8", "--sampling.max_tokens=24", "--actors.max_actors=1", "--run.seed=3")
    flags += ("--engine.draft_length=fixed", "--engine.max_model_len=256", "--run.rows_per_unit=4")
    undisturbed = job.undisturbed(*flags, "--engine.drafter=none")
    monkeypatch.setattr(generation, "Generator", killed_in_mid_row(tmp_path, job.output))
    assert job.generate(*flags, "--engine.drafter=model") == 0, job.printed()
    expected, found = generations(undisturbed), generations(job.output)
    assert len(list(tmp_path.glob("killed-*"))) == 2
    assert [(row["id"], row["token_ids"]) for row in found] == [(row["id"], row["token_ids"]) for row in expected]
    assert len(found) == len(chats)
    assert (content(job.output), errors(job.output), problems(job.output)) == (content(undisturbed), [], [])
    settings = settings_of((model_folder(smollm2), None), drafter="suffix", max_model_len=256)  # type: ignore[arg-type]
    with (
        running_server(settings, ServiceSettings(model=MODEL), EdgeSettings(keys=None)) as server,
        server.client() as client,
    ):
        for seed, (chat, row) in enumerate(zip(chats[:4], found, strict=False)):
            fields: dict[str, Any] = {**chat, "seed": seed, "temperature": 0.8, "max_tokens": 24}
            (choice,) = answered(client.chat.completions, **fields, extra_body=STRUCTURED).choices
            assert choice.message.content == row["text"]
    run = json.loads((job.output / "run.json").read_text())
    assert run["identity"]["target_gguf"]["quantization"] == "Q4_1"
    assert "dequantized from Q4_1" in " ".join((job.output / "report.html").read_text().split())


def test_scores_of_a_job_are_those_of_transformers(tmp_path: Path, smollm2: str, smollm2_reference: Reference) -> None:
    texts = [
        ("The capital of France is", " Paris."),
        ("One, two, three,", " four, five"),
        ("A raven is a", " bird"),
    ]
    write_jsonl(tmp_path / "in.jsonl", [{"prompt": prompt, "answer": answer} for prompt, answer in texts])
    flags = [f"--input.path={tmp_path / 'in.jsonl'}", f"--output.path={tmp_path / 'out'}", "--task=score"]
    flags += [f"--models.target={smollm2}", "--score.continuation_column=answer", "--engine.max_model_len=256"]
    assert generate.main([*flags, "--run.progress=none"]) == 0
    for (prompt, answer), row in zip(texts, generations(tmp_path / "out"), strict=True):
        ids = smollm2_reference.tokenizer(prompt).input_ids
        output: list[Any] = smollm2_reference.tokenizer(prompt + answer).input_ids[len(ids) :]
        assert row["token_ids"] == output
        assert row["logprobs"] == pytest.approx(smollm2_reference.logprobs(ids, output), abs=2e-4)
