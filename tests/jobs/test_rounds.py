"""Rounds of a run are recorded for some rows, all or none, under every placement, and older runs go on without."""

import time

import pytest

from jobs.config.loading import load
from jobs.config.run import RunConfig
from jobs.driver import plan as planning
from jobs.driver.outcome import Exit, conclude
from jobs.driver.plan import make_plan, worker_spec
from jobs.report_page import page
from pipeline.counts import Counts
from pipeline.run.directory import RunDirectory
from pipeline.run.row_sample import NO_ROWS, RowSample
from tests.jobs.report_page.made_run import made_run
from tests.jobs.runs import content, generations, problems, prompts
from tests.jobs.test_placements import SPLIT
from tests.jobs.test_programs import PROGRAM

CPU = "--models.device=cpu"


def test_a_run_that_is_complete_has_its_page_and_the_rounds_of_its_sample(plain_run):
    rows = generations(plain_run / "out")
    assert len(rows) == 30
    assert all(len(row["draft_rounds"]) == row["num_rounds"] for row in rows), "of 31 rows all are in the sample"
    assert problems(plain_run / "out") == []
    text = (plain_run / "out/report.html").read_text()
    assert "complete and verified" in text
    assert f"report: {plain_run}/out/report.html" in (plain_run / "out.txt").read_text()


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("ray_address")
@pytest.mark.parametrize(
    "flags",
    [SPLIT, (PROGRAM,), ("--engine.verification=rejection",), ("--engine.drafter=suffix", "--sampling.n=2")],
    ids=["split placement", "programs", "rejection", "another drafter"],
)
def test_all_rounds_add_up_to_the_counts_and_change_no_token(job, flags):
    job.read(prompts(60))
    assert job.generate(*flags, "--output.rounds=all", "--sampling.temperature=0.8") == 0, job.printed()
    rows = generations(job.output)
    assert all(row["draft_rounds"] is not None for row in rows)
    assert problems(job.output) == []
    assert any(each["rejected_token_ids"] for row in rows for each in row["draft_rounds"])
    if flags != ("--engine.verification=rejection",):
        other = job.undisturbed(*flags, "--output.rounds=none", "--sampling.temperature=0.8", "--engine.num_slots=3")
        assert all(row["draft_rounds"] is None for row in generations(other))
        assert content(other) == content(job.output)


def test_a_run_begun_before_there_were_rounds_goes_on_without_them(job, monkeypatch):
    create = RunDirectory.create
    monkeypatch.setattr(
        planning.RunDirectory,
        "create",
        lambda path, run, units: create(path, {k: v for k, v in run.items() if k != "has_rounds"}, units),
    )
    job.read(8)
    job.begin(CPU)
    plan = make_plan(load(RunConfig, job.command(CPU), prog="test"))
    assert plan.run_directory is not None
    assert "draft_rounds" not in plan.run_directory.generations_schema.names
    assert worker_spec(plan, plan.run_directory).recorded_rows == NO_ROWS
    assert job.generate(CPU, "--output.rounds=all") == 2
    assert "output.rounds is 'all', but the run in" in job.printed()


def test_which_rows_are_recorded_follows_the_configuration(job):
    job.read(80)
    job.begin(CPU)
    found = {}
    for asked in ("sample", "all", "none"):
        plan = make_plan(load(RunConfig, job.command(CPU, f"--output.rounds={asked}"), prog="test"))
        assert plan.run_directory is not None
        found[asked] = worker_spec(plan, plan.run_directory).recorded_rows
    assert found == {"sample": RowSample(80, 50), "all": RowSample(80, 80), "none": NO_ROWS}


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--engine.backend=vllm", "engine.backend is 'vllm', which does not tell the tokens that it rejects"),
        ("--task=score", "output.rounds 'all' is set, but task is 'score'"),
    ],
)
def test_rounds_that_cannot_be_recorded_are_refused_by_name(flag, said):
    command = ["--input.path=in.jsonl", "--output.path=out", "--models.target=any", "--output.rounds=all", flag]
    with pytest.raises(ValueError, match=said):
        load(RunConfig, command, prog="test")


@pytest.mark.parametrize("flag", ["--output.report_html", "--no-output.report_html"])
def test_a_page_that_cannot_be_written_costs_the_run_nothing(tmp_path, monkeypatch, capsys, flag):
    run_directory = made_run(tmp_path, prompts(8))
    config = load(
        RunConfig,
        [f"--input.path={tmp_path}/in.jsonl", f"--output.path={tmp_path}/out", "--models.target=any", flag],
        prog="test",
    )
    monkeypatch.setattr(page, "page_of", lambda *_: 1 / 0)
    assert conclude(run_directory, config, Counts(), time.monotonic()) == Exit.COMPLETE
    assert run_directory.is_success()
    assert not (tmp_path / "out/report.html").exists()
    said = "warning: report.html could not be written: ZeroDivisionError: division by zero"
    assert (said in capsys.readouterr().err) == (flag == "--output.report_html")
