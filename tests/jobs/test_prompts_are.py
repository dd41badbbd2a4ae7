"""input.prompts_are: whether a prompt is asked as a user's message, or continued as a text."""

import shutil
from typing import Any

import pytest
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from jobs.config.loading import load
from jobs.config.run import RunConfig
from jobs.driver.plan import create_run, make_plan
from pipeline.inputs.options import InputOptions, settle_prompts
from tests.endpoint.in_process import BUNDLED
from tests.jobs.conftest import Job
from tests.jobs.runs import errors, generations

AUTO, CHAT, CPU = "--input.prompts_are=auto", "--input.prompts_are=chat", "--models.device=cpu"
ASKED = "Write a shopping list for Nadia on 9 February."
MARKED = f"<|user|>{ASKED}<|end|><|assistant|>"
PAIR = (str(BUNDLED / "target"), str(BUNDLED / "draft"))


def _row(number: int, **given: Any) -> dict[str, Any]:
    return {"id": f"row-{number}", "kind": "a", **given}


def _plan(job: Job, *flags: str):  # type: ignore[no-untyped-def]
    return make_plan(load(RunConfig, job.command(CPU, *flags), prog="test"))


def test_a_prompt_is_asked_as_the_message_that_it_is(job):
    job.pair = PAIR
    flags = ("--run.local", "--chat.system_prompt=Be kind.", "--sampling.temperature=0.8")
    message = {"messages": [{"role": "user", "content": ASKED}]}
    job.read([_row(0, prompt=ASKED), _row(1, prompt=MARKED), _row(2, prompt=""), _row(3, **message)])
    assert job.generate(AUTO, *flags) == 0
    assert "prompts: asked as a user's message, since the model has a chat template" in job.printed()
    asked, marked, chat = generations(job.output)
    assert asked["prompt"] == chat["prompt"] == f"<|system|>Be kind.<|end|>{MARKED}"
    assert (asked["is_chat"], marked["is_chat"], marked["prompt"]) == (True, False, MARKED)
    assert [row["message"] for row in errors(job.output)] == ["the prompt is empty; give it at least one character"]
    job.output = job.folder / "other"
    job.read([_row(0, **message), _row(1, prompt=MARKED)])
    assert job.generate(CHAT, *flags) == 0
    as_message, told = generations(job.output)
    assert as_message["token_ids"] == asked["token_ids"]
    assert told["prompt"] == f"<|system|>Be kind.<|end|><|user|>{MARKED}<|end|><|assistant|>", "no prompt is spared"


@pytest.mark.parametrize(
    ("asked_for", "format_", "marks", "why_text", "settled", "reason"),
    [
        ("auto", "jsonl", ("<|im_start|>",), None, ("<|im_start|>",), "since the model has a chat template"),
        ("auto", "jsonl", None, None, None, "since the model has no chat template"),
        ("auto", "jsonl", (), "a program gets a row's prompt as it is", None, "since a program"),
        ("auto", "openai_batch", (), None, None, "since each line of an OpenAI batch file"),
        ("text", "jsonl", (), None, None, "as input.prompts_are says"),
        ("chat", "jsonl", ("<|im_start|>",), None, (), "as input.prompts_are says"),
        ("chat", "jsonl", None, None, ValueError, "prompts_are is 'chat', but the model has no chat template"),
        ("chat", "jsonl", (), "task 'score' takes", ValueError, "prompts_are is 'chat', but task 'score' takes"),
        ("chat", "openai_batch", (), None, ValueError, "prompts_are is 'chat', but each line of an OpenAI batch"),
    ],
)
def test_what_a_prompt_is_follows_from_the_model_and_the_task(asked_for, format_, marks, why_text, settled, reason):
    options = InputOptions(format_, prompts_are=asked_for)
    if settled is ValueError:
        with pytest.raises(ValueError, match=reason):
            settle_prompts(options, marks, why_text)
        return
    found, why = settle_prompts(options, marks, why_text)
    assert found.text_marks == settled
    assert why.startswith(reason)


@pytest.mark.parametrize("flag", ["--task=score", "--program.function=examples.programs.calculator:solve"])
def test_rows_that_are_no_texts_to_write_have_no_questions(job, flag):
    job.read(1)
    command = [word for word in job.command(CPU, AUTO, flag) if not word.startswith(("--sampling", "--models.draft"))]
    assert make_plan(load(RunConfig, command, prog="test")).input_options.text_marks is None
    with pytest.raises(ValueError, match=r"input\.prompts_are is 'chat', but "):
        make_plan(load(RunConfig, [*command, CHAT], prog="test"))


def test_a_run_goes_on_with_its_prompts_as_it_began(job):
    job.read(2)
    create_run(_plan(job, AUTO))
    assert _plan(job, AUTO).input_options.text_marks == ()
    with pytest.raises(ValueError, match=r'input\.prompts_are: was "?chat"?, is "?text"?'):
        _plan(job)
    job.output = job.folder / "before"
    plan = _plan(job)
    del plan.identity["input"]["prompts_are"]  # as in the identity of runs that were begun before there was this
    create_run(plan)
    later = _plan(job, AUTO)
    assert (later.input_options.text_marks, later.why_prompts) == (None, "as the run began with them")
    assert _plan(job).input_options.text_marks is None
    with pytest.raises(ValueError, match=r'input\.prompts_are: was absent, is "?chat"?'):
        _plan(job, CHAT)


def test_the_plan_shows_how_the_first_prompt_is_read_and_how_that_is_changed(job):
    job.pair = PAIR
    job.read([_row(0, prompt=ASKED), _row(1, prompt=MARKED)])
    assert job.generate(AUTO, CPU, "--dry-run") == 0
    said = job.printed()
    assert "(input.prompts_are: text continues them as they are)" in said
    assert "the prompt of in.jsonl:1 as the model reads it:\n    | <|user|>Write a shopping list" in said
    assert "1 of these prompts have marks of the template (<|assistant|>, <|end|>)" in " ".join(said.split())
    assert job.generate(CPU, "--dry-run") == 0
    assert "prompts: sent as they are, as input.prompts_are says" in job.printed()


def test_the_plan_warns_of_prompts_that_would_begin_twice(job, tmp_path):
    shutil.copytree(job.pair[0], tmp_path / "begins")
    tokenizer = AutoTokenizer.from_pretrained(job.pair[0])
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing("<|end|> $A", special_tokens=[("<|end|>", 0)])
    tokenizer.bos_token = "<|end|>"
    tokenizer.save_pretrained(tmp_path / "begins")
    job.pair = (str(tmp_path / "begins"), job.pair[1])
    job.read([_row(0, prompt="<|end|>hello"), _row(1, prompt="hello")])
    assert job.generate(CPU, "--dry-run", "--engine.drafter=none") == 0
    said = " ".join(job.printed().split())
    assert "warning: 1 of these prompts begin with two begin tokens: the tokenizer adds <|end|>" in said
