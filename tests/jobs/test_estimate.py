"""`jobs.generate --estimate`: some rows from all over the input, done for real, say what all would take."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from rich.console import Console

from jobs.config.loading import load
from jobs.config.run import GenerateConfig
from jobs.driver.plan import Plan, make_plan
from jobs.work.estimate import Measured, estimated, spread_units
from pipeline.counts import Counts
from tests.jobs.conftest import Job

COUNTS = Counts(num_rows=40, num_generations=40, num_output_tokens=4000, num_rounds=1000, num_draft_tokens=4000)
MEASURED = Measured(COUNTS, 8.0, (10,) * 4, (900, 1100, 1000, 1000), (100,) * 36 + (50, 50, 100, 200), 1)


def _plan(job: Job, *flags: str) -> Plan:
    return make_plan(load(GenerateConfig, job.command("--models.device=cpu", *flags), prog="test"))


def _printed(job: Job, *flags: str) -> str:
    config = load(GenerateConfig, job.command("--models.device=cpu", "--estimate=40", *flags), prog="test")
    plan, console = make_plan(config), Console(width=200)
    plan = replace(plan, pool=replace(plan.pool, num_gpus=2.0))  # as on a machine that has some
    with console.capture() as captured:
        for line in estimated(config, plan, MEASURED, 9000):
            console.print(line, highlight=False)
    return captured.get()


@pytest.mark.parametrize(("num_rows", "wanted"), [(1000, 64), (1000, 10), (20, 64), (97, 33)])
def test_the_rows_come_from_places_that_are_spread_evenly_over_the_input(job, num_rows, wanted):
    job.read(num_rows)
    units = list(spread_units(_plan(job), wanted))
    assert [unit.unit_id for unit in units] == list(range(len(units)))
    starts = [unit.row_start for unit in units]
    assert starts == sorted(set(starts))
    assert min(num_rows, wanted) / 2 <= sum(unit.num_rows for unit in units) <= wanted
    gaps = [after - before for before, after in pairwise(starts)]
    assert max([starts[0], num_rows - starts[-1], *gaps]) <= 2 * num_rows / len(units) + 2


def test_hours_and_price_follow_from_the_pace_of_one_engine(job):
    job.read(8)
    printed = _printed(job, "--price_per_hour=2", "--actors.max_actors=5")
    # 5 rows a second: 9,000 rows are 1,800 s of one engine, 0.5 engine hours, 6 minutes of five engines.
    assert "500 tokens/s, 5.00 rows/s" in printed
    assert "6:00 (5:" in printed
    assert "0.50 (0.4" in printed
    assert "1.00 (0.9" in printed
    assert "1.00 (2 GPUs an engine)" in printed
    assert "900,000 (8" in printed
    assert "whether 5 engines are as fast as one each" in printed
    assert "100 / 100 / 100 tokens (10, 50, 90 %), at most 200; 2% ended at max_tokens" in printed


def test_the_interval_is_wider_where_places_differ_more():
    alike = Measured(COUNTS, 8.0, (10,) * 4, (1000,) * 4, (), 0)
    assert alike.tokens_per_row() == (100.0, 100.0, 100.0)
    mean, low, high = MEASURED.tokens_per_row()
    assert 90 <= low < mean < high <= 110


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--estimate=9"], "estimate: input should be greater than or equal to 10, got '9'"),
        (["--price-per-hour=2"], "price_per_hour is set, but estimate is not"),
        (["--estimate=20", "--dry-run"], "dry_run loads no model, and estimate generates rows"),
    ],
)
def test_fields_that_make_no_estimate_are_refused(job, flags, message):
    job.read(2)
    assert job.generate(*flags) == 2
    assert message in job.printed()


@pytest.mark.usefixtures("local")
def test_an_estimate_generates_rows_and_leaves_nothing_behind(job):
    job.read([*[{"id": f"r{i}", "kind": "a", "prompt": "hello world"} for i in range(60)], "no JSON"])
    assert job.generate("--estimate=20", "--sampling.n=2", "--models.device=cpu") == 0
    printed = job.printed()
    assert "Estimate for 61 rows" in printed
    assert "20 rows from 20 places, 1 of them failed" in printed
    assert "38 texts leave many of 16 slots" in " ".join(printed.split())
    assert sorted(path.name for path in Path(job.folder).iterdir()) == ["in.jsonl"]
