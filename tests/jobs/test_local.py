"""run.local: a run in the process of its command, without Ray, whose rows, parts and report are those of any run."""

import asyncio
import json
from dataclasses import replace

import pytest

from actors.run_notes import WrittenText
from actors.units.ledger import Ledger
from actors.units.ledgers import LocalLedger
from actors.units.workplace import Workplace
from actors.workers.engine_worker import EngineWorker
from jobs.config.loading import load
from jobs.config.run import RunConfig
from jobs.driver import execution
from jobs.driver.plan import create_run, make_plan, worker_spec
from pipeline.logs import LogSettings
from pipeline.run.commit import Receipt
from tests.jobs.conftest import Job
from tests.jobs.runs import arguments, commits, content, errors, generations, problems, prompts


def local(job: Job, *flags: str) -> int:
    return job.generate("--run.local", "--engine.draft_length=fixed", *flags)


def test_a_local_run_is_complete_goes_on_and_does_only_what_is_missing(job, monkeypatch):
    def start(*_: object) -> None:
        raise AssertionError("Ray was started")

    monkeypatch.setattr("jobs.driver.execution.start_ray", start)
    job.read([*prompts(19), "{not json"])
    assert local(job) == 0, job.printed()
    assert problems(job.output) == []
    assert [row["row_id"] & 0xFFFFFFFF for row in errors(job.output)] == [3], "the fourth row of the third unit"
    report = json.loads((job.output / "report.json").read_text())
    assert (report["complete"], report["counts"]["num_rows"], report["counts"]["num_errors"]) == (True, 20, 1)
    whole, before = content(job.output), commits(job.output)
    assert local(job) == 0
    assert "Nothing left to do" in job.printed()
    (lost, *kept) = sorted(before)
    (job.output / "data" / lost).unlink()
    assert local(job, "--engine.num_slots=3") == 0
    after = commits(job.output)
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}
    assert content(job.output) == whole
    assert job.retry("--run.local", "--engine.draft_length=fixed") == 0
    assert "still fail: 1" in job.printed()


@pytest.mark.parametrize(("flags", "is_doubted"), [((), True), (("--engine.drafter=suffix",), False)])
def test_a_run_doubts_a_draft_that_is_named_without_a_drafter_and_no_lookup(job, monkeypatch, flags, is_doubted):
    monkeypatch.setattr("jobs.driver.progress._FEWEST_DRAFTED", 1)
    monkeypatch.setattr("jobs.driver.progress._RARELY", 1.1)
    job.read(prompts(5))
    assert local(job, "--run.progress=lines", *flags) == 0
    assert ("drafted, " in job.capsys.readouterr().err) == is_doubted


@pytest.mark.parametrize(
    ("flag", "name"),
    [
        ("--actors.max_actors=2", "actors.max_actors"),
        ("--placement=split", "placement 'split'"),
        ("--stages.count=2", "stages.count and stages.tensor_parallel"),
        ("--learn.every_rows=8", "learn.every_rows"),
        ("--run.ray_address=local", "run.ray_address"),
    ],
)
def test_what_needs_other_processes_is_refused(flag, name, tmp_path):
    given = arguments("x", tmp_path, ("t", "d"), "--run.local", "--engine.drafter=model", flag)
    with pytest.raises(ValueError, match=f"run.local is set, for a run without Ray, but {name} asks for Ray"):
        load(RunConfig, given, "test")


@pytest.mark.ray
@pytest.mark.usefixtures("ray_address")
def test_a_run_on_ray_writes_the_same_rows(job, plain_run):
    job.source = plain_run / "in.jsonl"
    assert job.generate("--engine.num_slots=5", "--engine.draft_length=fixed") == 0, job.printed()
    assert content(job.output) == content(plain_run / "out")


def test_a_finished_text_is_told_while_the_unit_that_it_is_in_goes_on(job):
    row = {"id": None, "kind": "a", "prompt": "hello"}
    job.read([{**row, "sampling": {"max_tokens": most, "ignore_eos": True}} for most in (400, 1)])
    plan = make_plan(load(RunConfig, job.command(), "test"))
    run_directory, ledger = create_run(plan), Ledger()
    spec = replace(worker_spec(plan, run_directory), follows_drafts=False, tells_text=True)
    worker = EngineWorker(spec, LocalLedger(ledger), workplace=Workplace.beside("out", LogSettings()))

    async def work() -> WrittenText | None:
        unit = asyncio.ensure_future(worker.outcome(next(plan.new_units())))
        while ledger.first_text() is None and not unit.done():
            await asyncio.sleep(0)  # between two steps of the engine
            worker._tell(worker.engine.loop.stats())
        assert not unit.done(), "the text was told at the commit"
        assert isinstance(await unit, Receipt)
        return ledger.first_text()

    told = asyncio.run(work())
    (row,) = (row for row in generations(job.output) if row["num_output_tokens"] == 1)
    assert told == WrittenText("in.jsonl#2", "hello", row["text"])


def test_a_run_without_ray_is_told_each_second_what_is_written(job, monkeypatch):
    specs, work = [], execution.in_process

    def told(units, spec, *others):
        specs.append(spec)
        yield from work(units, spec, *others)

    monkeypatch.setattr(execution, "in_process", told)
    job.read(prompts(2))
    assert local(job) == 0, job.printed()
    assert [spec.tells_every_s for spec in specs] == [1.0]
