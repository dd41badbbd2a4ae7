"""Metrics of a run: Prometheus reads the counts that the run wrote."""

from contextlib import suppress

import pytest

from pipeline.run.check import check_run
from pipeline.run.directory import RunDirectory
from tests.jobs.driver.scraping import scrape, sums
from tests.jobs.runs import prompts, wait_until

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_address")]
GAUGES = {"ray_dray_engine_slots", "ray_dray_engine_running", "ray_dray_engine_waiting"}
GAUGES |= {"ray_dray_units_left", "ray_dray_rows_left"}


def test_prometheus_reads_the_counts_that_a_run_wrote(job):
    bad = [{"id": "a", "kind": "a"}, {"id": "b", "kind": "a", "prompt": ""}]
    bad += [{"id": "c", "kind": "a", "prompt": "hello " * 400}]
    job.read([*prompts(21), *bad])
    job.output = job.folder / "scraped-run"
    two = ("--actors.min_actors=2", "--actors.max_actors=2")
    assert job.generate("--sampling.n=2", "--engine.draft_length=fixed", *two) == 0

    counts = check_run(RunDirectory.open(str(job.output))).counts
    assert min(counts.num_cached_tokens, counts.num_accepted_tokens, counts.num_errors) > 0
    expected = {
        ("ray_dray_rows_total", "generated"): 21,
        ("ray_dray_rows_total", "failed"): 3,
        **{("ray_dray_errors_total", stage): 1 for stage in ("read", "encode", "generate")},
        ("ray_dray_generations_total",): counts.num_generations,
        ("ray_dray_prompt_tokens_total",): counts.num_prompt_tokens,
        ("ray_dray_cached_prompt_tokens_total",): counts.num_cached_tokens,
        ("ray_dray_output_tokens_total",): counts.num_output_tokens,
        ("ray_dray_rounds_total",): counts.num_rounds,
        ("ray_dray_draft_tokens_total",): counts.num_draft_tokens,
        ("ray_dray_accepted_tokens_total",): counts.num_accepted_tokens,
        **{
            ("ray_dray_accepted_tokens_by_position_total", str(position)): accepted
            for position, accepted in enumerate(counts.accepted_per_position)
        },
        ("ray_dray_units_committed_total",): 3,
        ("ray_dray_unit_seconds_count",): 3,
    }

    seen: set[str] = set()  # a gauge goes soon after its process; counters stay

    def all_is_there() -> bool:
        totals = sums(scrape("scraped-run"))
        seen.update(name for name, *_ in totals)
        return expected.items() <= totals.items() and seen >= GAUGES

    with suppress(AssertionError):
        wait_until(all_is_there, every_s=0.3)
    samples = scrape("scraped-run")
    totals = sums(samples)
    assert {name: totals[name] for name in expected} == expected
    assert seen >= GAUGES
    assert 0 < totals["ray_dray_engine_round_seconds_total",] < totals["ray_dray_engine_busy_seconds_total",]
    assert all(sample.labels["WorkerId"] for sample in samples), "one process cannot be told from another"
    # What never happened is there at 0: Prometheus sees no increase in a series that begins at 1.
    never = {(f"ray_dray_{name}_total",) for name in ("units_repeated", "worker_deaths", "out_of_memory")}
    never |= {("ray_dray_errors_total", stage) for stage in ("template", "params", "program")}
    assert {name: totals.get(name) for name in never} == dict.fromkeys(never, 0)
