"""A corpus whose rows are programs: exactly once, resumed, tried again and exported like any other."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from actors.workers.engine_worker import EngineWorker
from examples.programs.calculator import calculate
from jobs import export, generate
from jobs.config.loading import load
from jobs.config.run import RunConfig
from jobs.driver import execution
from jobs.driver.plan import create_run, make_plan
from tests.jobs.runs import arguments, content, errors, generations, problems, prompts
from training.corpus.corpus import Corpus
from training.corpus.options import CorpusOptions

PROGRAM = "--program.function=tests.jobs.test_programs:talk"


async def talk(generate: Any, row: dict[str, Any]) -> dict[str, Any]:
    """Two turns with a tool between them."""
    messages = list(row.get("messages") or [{"role": "user", "content": row["prompt"]}])
    first = await generate(messages)
    value = await generate.call(calculate, expression=f"{len(first.text)} x 2")
    messages += [first.message, {"role": "user", "content": value}]
    second = await generate(messages, {"temperature": 0.7, "max_tokens": 8})
    return {"value": value, "second": second.text}


@pytest.mark.ray
@pytest.mark.usefixtures("ray_address")
def test_rows_that_are_programs_are_generated_once_whatever_drafts_and_exported(job, tmp_path):
    job.read([*prompts(14), "not JSON"])
    assert job.generate(PROGRAM) == 0, job.printed()
    assert problems(job.output) == []
    first = generations(job.output)
    assert all(row["num_turns"] == len(row["turns"]) == 2 for row in first)
    assert all(json.loads(row["result"])["value"] == json.loads(row["tool_results"][0]["result"]) for row in first)
    assert not list(job.output.glob("tools/*/*")), "nothing is recorded twice"
    assert export.main([str(job.output), str(tmp_path / "out.jsonl"), "--format", "jsonl"]) == 0
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["turns"] for line in lines] == [row["turns"] for row in first]
    other = tmp_path / "other"
    more = ["--engine.drafter=none", "--engine.num_slots=3", PROGRAM]
    assert generate.main(arguments(job.source, other, job.pair, *more)) == 0
    assert content(other) == content(job.output)
    with pytest.raises(ValueError, match="its rows ran a program"):
        Corpus.open(CorpusOptions(path=str(job.output)), job.pair[0])


@pytest.mark.ray
@pytest.mark.usefixtures("ray_address")
def test_a_row_whose_program_failed_is_an_error_row_that_a_retry_mends(job):
    program = "--program.function=tests.jobs.test_programs:fails_while_a_file_is_there"
    failing = job.folder / "failing"
    failing.touch()
    job.read([{**row, "failing": str(failing)} for row in prompts(6)])
    assert job.generate(program) == 0, job.printed()
    (error,) = errors(job.output)
    assert (error["id"], error["stage"], error["error_type"]) == ("row-4", "program", "RuntimeError")
    assert "not today (line " in error["message"]
    failing.unlink()
    assert job.retry(program) == 0, job.printed()
    assert problems(job.output) == []
    assert len(generations(job.output)) == 6


async def fails_while_a_file_is_there(generate: Any, row: dict[str, Any]) -> None:
    """One row fails."""
    await generate(row.get("messages") or row["prompt"])
    if row["id"] == "row-4" and Path(row["failing"]).exists():
        raise RuntimeError("not today")


def test_a_program_belongs_to_the_identity_of_a_run(job):
    job.read(3)
    create_run(make_plan(load(RunConfig, job.command(PROGRAM), prog="test")))
    make_plan(load(RunConfig, job.command(PROGRAM, "--program.timeout_s=5"), prog="test"))
    with pytest.raises(ValueError, match=r"program\.function: was .*talk.*, is absent"):
        make_plan(load(RunConfig, job.command(), prog="test"))


def test_a_program_beside_a_draft_that_learns_ends_the_command_before_any_work(job):
    job.read(3)
    assert job.generate(PROGRAM, "--learn.every_rows=8") == 2
    assert "a draft learns from rows of one generation" in " ".join(job.printed().split())
    assert not job.output.exists()


def test_a_column_of_the_input_with_the_name_of_a_programs_column_is_refused(job):
    job.read([{**row, "turns": 1} for row in prompts(3)])
    assert job.generate(PROGRAM, "--input.carry_columns=[turns]") == 2
    assert "carried columns ['turns'] have names that the output uses itself" in job.printed()


@pytest.mark.parametrize(
    ("expression", "value"), [("3 x 90 + 15", "285"), ("7-10", "-3"), ("", "?"), ("2 ** 9", "?"), ("1 +", "?")]
)
def test_the_calculator_computes_sums_of_whole_numbers_only(expression, value):
    assert calculate(expression) == value


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.usefixtures("ray_address")
def test_an_engine_that_is_killed_between_two_turns_costs_no_token(job, monkeypatch):
    job.read(prompts(12))
    undisturbed, mark = job.undisturbed(PROGRAM), job.folder / "died"

    class Dying(EngineWorker):
        async def _finish(self, rows: list[Any]) -> None:
            if not mark.exists():
                mark.touch()
                finish, num_finished = self.engine.loop.finish, 0

                async def dies(sequences: Any) -> None:
                    nonlocal num_finished
                    await finish(sequences)
                    num_finished += 1
                    if num_finished == 9:
                        os._exit(1)

                self.engine.loop.finish = dies  # type: ignore[method-assign]
            await super()._finish(rows)

    monkeypatch.setattr(execution, "EngineWorker", Dying)
    assert job.generate(PROGRAM) == 0, job.printed()
    assert content(job.output) == content(undisturbed)
    assert problems(job.output) == []
