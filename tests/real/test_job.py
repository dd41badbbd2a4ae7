"""Jobs over real models: no draft changes a row, a killed process loses none, and scores are those of transformers."""

import json
from typing import Any

import pytest

from benchmarks.roofline.hardware import describe_machine
from checks import ROOT, answers
from examples import demo_real
from jobs import generate, prove
from jobs.driver import execution
from tests.jobs.conftest import Job
from tests.jobs.runs import content, errors, generations, problems, write_jsonl
from tests.jobs.test_structured_kill import killed_in_mid_row
from tests.real.conftest import Reference, chat, path_of

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]
ASKED = [
    "Write a short story about a raven.",
    "List three facts about the moon.",
    "Describe a city as a JSON object with a title, a kind and a count.",
    "What is 17 + 25? Explain.",
    "Write a Python function that adds two numbers.",
    "Translate 'good morning' into French, Spanish and German.",
]
FEW = ("--prove.drafters=suffix", "--prove.num_slots=4", "--sampling.temperature=0.8", "--prove.every_setting")
MIXED = ("--prove.num_slots=8", "--prove.num_prompts=27", "--prove.asked=mixed")


@pytest.mark.parametrize(
    ("model", "num_rows", "flags"),
    [
        ("smollm2", 2, (*FEW, "--prove.asked=[json_schema,hermes_forced,thought]")),
        pytest.param("smollm2", 27, (*MIXED, "--sampling.temperature=0"), marks=pytest.mark.slow),
        pytest.param("smollm2", 27, (*MIXED, "--sampling.temperature=0.8"), marks=pytest.mark.slow),
        pytest.param("gemma3", 4, (*FEW, "--prove.asked=[nothing,json_schema]"), marks=pytest.mark.slow),
    ],
)
def test_no_draft_changes_a_row_whatever_is_asked_of_it(model, num_rows, flags, tmp_path, capsys):
    asked = (ASKED * num_rows)[:num_rows]
    rows = [{"prompt": f"Question: {text}\nAnswer:"} if model == "gemma3" else chat(text) for text in asked]
    write_jsonl(tmp_path / "in.jsonl", rows)
    own = (
        "--input.prompts_are=text",
        "--sampling.max_tokens=24",
        "--engine.max_model_len=512",
        "--prove.draft_lengths=4",
    )
    command = [f"--input.path={tmp_path / 'in.jsonl'}", f"--output.path={tmp_path / 'out'}", *own, *flags]
    command += [f"--models.target={path_of(model)}", f"--prove.json_path={tmp_path / 'proof.json'}"]
    assert prove.main(command) == 0
    result = json.loads((tmp_path / "proof.json").read_text())
    assert result["num_different_rows"] == 0
    assert result["num_tokens"] > 75 * num_rows
    assert ", weights of Q4_" in " ".join(capsys.readouterr().out.split())


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("ray_address")
def test_rows_whose_process_is_killed_have_the_same_text_once(tmp_path, capsys, monkeypatch):
    job = Job(tmp_path, (path_of("smollm2"), path_of("smollm2")), capsys)  # a draft that is accepted whole
    schema = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 9}}, "required": ["a"]}
    form = {"structured": {"json_schema": schema}}
    rows = [{"id": f"row-{i}", "kind": "a", **chat(ASKED[i % 6]), "sampling": {**form, "seed": i}} for i in range(12)]
    job.read(rows)
    flags = ("--sampling.temperature=0.8", "--sampling.max_tokens=24", "--actors.max_actors=1", "--run.seed=3")
    flags += ("--engine.draft_length=fixed", "--engine.max_model_len=256", "--run.rows_per_unit=4")
    undisturbed = job.undisturbed(*flags, "--engine.drafter=none")
    monkeypatch.setattr(execution, "EngineWorker", killed_in_mid_row(tmp_path, job.output))
    assert job.generate(*flags, "--engine.drafter=model") == 0, job.printed()
    expected, found = (
        [(row["id"], row["token_ids"]) for row in generations(each)] for each in (undisturbed, job.output)
    )
    assert len(list(tmp_path.glob("killed-*"))) == 2
    assert found == expected
    assert len(found) == len(rows)
    assert (content(job.output), errors(job.output), problems(job.output)) == (content(undisturbed), [], [])


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("ray_address")
def test_scores_of_a_job_are_those_of_transformers(tmp_path):
    texts = {"The capital of France is": " Paris.", "One, two, three,": " four, five", "A raven is a": " bird"}
    write_jsonl(tmp_path / "in.jsonl", [{"prompt": prompt, "answer": answer} for prompt, answer in texts.items()])
    flags = [f"--input.path={tmp_path / 'in.jsonl'}", f"--output.path={tmp_path / 'out'}", "--task=score"]
    flags += [f"--models.target={path_of('smollm2')}", "--score.continuation_column=answer"]
    assert generate.main([*flags, "--run.progress=none", "--engine.max_model_len=256"]) == 0
    reference = Reference("smollm2")
    for (prompt, answer), row in zip(texts.items(), generations(tmp_path / "out"), strict=True):
        ids = reference.tokenizer(prompt).input_ids
        output: list[Any] = reference.tokenizer(prompt + answer).input_ids[len(ids) :]
        assert row["token_ids"] == output
        assert row["logprobs"] == pytest.approx(reference.logprobs(ids, output), abs=2e-4)


def test_the_answer_that_readme_shows_is_what_the_model_writes(tmp_path):
    if not answers.ANSWER.exists():
        pytest.skip("make demo-real-answer has not written it yet")
    shown = json.loads(answers.ANSWER.read_text())
    if describe_machine()["processor"] != shown["machine"]["processor"]:
        pytest.skip(f"it was written on {shown['machine']['processor']}, and another processor may round differently")
    source, output = tmp_path / "in.jsonl", tmp_path / "out"
    asked, question, _ = (ROOT / demo_real.QUESTIONS).read_text().partition(shown["question"])
    source.write_text(f'{asked}{question}"}}\n')  # a row's noise follows from its place in the input
    command = [f"--config={answers.CONFIG}", f"--models.target={path_of('smollm2')}"]
    assert generate.main([*command, f"--input.path={source}", f"--output.path={output}"]) == 0
    assert generations(output)[-1]["text"] == shown["answer"]
