"""Plans of runs whose input has no rows, or whose ids are integers; they need no Ray."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from jobs.config.loading import load
from jobs.config.run import RunConfig
from jobs.driver.outcome import TooManyErrors, refuse_too_many_errors
from jobs.driver.plan import make_plan
from pipeline.id_set import IdSet
from pipeline.run.check import check_run
from pipeline.run.directory import RunDirectory
from pipeline.run.progress.missing import MissingUnits
from tests.decoding.fp8.checkpoints import save_fp8
from tests.jobs.conftest import Job
from tests.pipeline.made_up import committed_run

CPU = "--models.device=cpu"


@pytest.mark.parametrize("flags", [(), ("--dry-run",)])
def test_an_input_without_rows_is_refused_before_anything_is_written(job, flags):
    job.source.write_text("\n  \n")
    assert job.generate(CPU, *flags) == 2
    assert f"error: the input has no rows: all its files are empty (1, the first is {job.source});" in job.printed()
    assert not job.output.exists()


def test_an_input_without_rows_makes_an_empty_corpus_where_that_is_allowed(job):
    job.source.write_text("")
    assert job.generate(CPU, "--input.allow_empty", "--dry-run") == 0
    assert "1 file (jsonl), 0 rows" in job.printed()
    assert job.generate(CPU, "--input.allow_empty") == 0
    assert (job.output / "_SUCCESS").exists()
    assert job.generate(CPU) == 2, "the run that is there has no rows either"


def test_a_run_keeps_the_type_of_its_ids(job):
    job.read([{"id": 1, "kind": "a", "prompt": "hello"}])
    job.begin(CPU)
    assert str(RunDirectory.open(str(job.output)).id_type) == "int64"


def test_a_run_that_was_begun_before_ids_had_types_goes_on_with_strings(job):
    job.read([{"id": 1, "kind": "a", "prompt": "hello"}])
    job.begin(CPU)
    path = job.output / "run.json"
    run = json.loads(path.read_text())
    del run["id_type"], run["settings"]["input"]["allow_empty"]
    _write_as_it_was(path, run)
    assert str(RunDirectory.open(str(job.output)).id_type) == "string"
    assert job.generate(CPU, "--dry-run") == 0


def test_a_run_that_fails_by_its_error_rate_quotes_the_commonest_error(job, tmp_path):
    run_directory = committed_run(tmp_path / "run")
    config = load(RunConfig, job.command("--run.max_error_rate=0.1"), prog="test")
    with pytest.raises(
        TooManyErrors,
        match=r"^1 of 6 rows failed, .* 0\.1; the commonest error so far \(rows: 1\) is: bad\. All messages",
    ):
        refuse_too_many_errors(run_directory, check_run(run_directory).counts, config)


def _write_as_it_was(path: Path, run: dict[str, object]) -> None:
    from pipeline.run import directory

    del run["digest"]
    path.write_text(json.dumps({**run, "digest": directory._digest(run)}))


@pytest.fixture
def fp8_target(job: Job, tmp_path: Path) -> str:
    """The target of the job with FP8 weights."""
    folder = tmp_path / "fp8"
    shutil.copytree(job.pair[0], folder)
    save_fp8(AutoModelForCausalLM.from_pretrained(folder), folder, "blocks")
    return str(folder)


def test_what_is_not_fp8_keeps_the_checkpoints_dtype_on_a_cpu_too(job, fp8_target):
    job.read(3)
    config = load(RunConfig, job.command(CPU, f"--models.target={fp8_target}"), prog="test")
    assert make_plan(config).settings.models.dtype == "bfloat16"
    assert make_plan(load(RunConfig, job.command(CPU), prog="test")).settings.models.dtype == "float32"


def test_float32_beside_fp8_weights_is_refused_by_the_plan(job, fp8_target):
    job.read(3)
    assert job.generate(CPU, f"--models.target={fp8_target}", "--models.dtype=float32", "--dry-run") == 2
    assert "has FP8 weights, which do not go with models.dtype float32" in job.printed()
    assert job.generate(CPU, f"--models.draft={fp8_target}", "--dry-run") == 2  # float32, as the target is
    assert f"'{fp8_target}' has FP8 weights" in job.printed()
    assert job.generate(CPU, f"--models.draft={fp8_target}", "--models.dtype=bfloat16", "--dry-run") == 0


@pytest.mark.parametrize(
    ("num_rows", "most_engines", "num_samples", "given", "sizes"),
    [
        (40, 1, 1, None, [10] * 4),
        (300, 2, 1, None, [38] * 7 + [34]),
        (20, 8, 4, None, [1] * 20),
        (20, 8, 1, 16, [16, 4]),
        (2100, 2, 1, None, [256] * 8 + [52]),
    ],
)
def test_the_units_of_a_small_input_are_so_small_that_each_engine_has_several(
    job, num_rows, most_engines, num_samples, given, sizes
):
    job.read([{"id": 1, "kind": "a", "prompt": "hello"}] * num_rows)
    flags = (f"--actors.max_actors={most_engines}", f"--sampling.n={num_samples}")
    config = load(RunConfig, job.command(CPU, *flags), prog="test")
    plan = make_plan(replace(config, run=replace(config.run, rows_per_unit=given)))
    assert [unit.num_rows for unit in plan.new_units()] == sizes


@pytest.mark.parametrize(
    ("device", "num_bytes", "num_rows", "engines", "max_tokens", "rows_per_unit", "at_once"),
    [
        ("cpu", 540 * 10**6, 40, 1, 256, 10, 3),  # 135 million parameters
        ("cpu", 540 * 10**6, 300, 2, 256, 38, 2),
        ("cpu", 7 * 10**9, 40, 1, 256, 3, 7),  # 1.7 billion: slow, but eight units fill 16 slots
        ("cuda", 16 * 10**9, 70_000, 64, 1024, 183, 3),
        ("cuda", 16 * 10**9, 70_000, 64, 8192, 32, 10),  # eight units fill 256 slots
        ("cuda", 140 * 10**9, 70_000, 64, 32_768, 32, 10),
    ],
)
def test_the_units_of_a_slow_target_are_small_and_so_many_are_under_way_that_slots_are_full(
    job, tmp_path, device, num_bytes, num_rows, engines, max_tokens, rows_per_unit, at_once
):
    job.read([{"id": 1, "kind": "a", "prompt": "hello"}] * num_rows)
    flags = (f"--actors.max_actors={engines}", f"--sampling.max_tokens={max_tokens}")
    plan = make_plan(load(RunConfig, job.command(CPU, *flags), prog="test"))
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with (tmp_path / "model.safetensors").open("wb") as weights:
        weights.truncate(num_bytes)  # a hole, which takes no room
    models = replace(plan.settings.models, device=device, target=str(tmp_path))
    config = replace(plan.config, run=replace(plan.config.run, rows_per_unit=None))
    plan = replace(plan, config=config, settings=replace(plan.settings, models=models))
    units = list(plan.new_units())
    assert units[0].num_rows == rows_per_unit
    missing = MissingUnits("", IdSet(), len(units), num_rows, max_tokens)
    assert plan.pool_for(missing).units_in_flight == at_once
    given = replace(plan, pool=replace(plan.pool, units_in_flight=1))
    assert given.pool_for(missing).units_in_flight == 1
    small = replace(plan, config=replace(config, run=replace(config.run, rows_per_unit=1)))
    assert small.pool_for(missing).num_units_at_once == 2, "no more share the deaths of a row that kills"
