"""How a run spreads over actors with real engines, the bundled pair's. There is no ideal but one actor's."""

from pathlib import Path

from actors.workers.engine_worker import EngineWorker
from benchmarks.scale.actors import Spread, measure_actors
from jobs.config.loading import load
from jobs.config.run import RunConfig
from jobs.driver.plan import create_run, make_plan, worker_spec
from pipeline.run.dead_letters import MissingUnits


def run_engines(num_actors: int, folder: Path) -> Spread:
    """Measure the run on `num_actors` actors, in this folder, which is made."""
    folder.mkdir()
    pair = Path(__file__).parents[2] / "examples" / "tiny_pair"
    prompts = (pair.parent / "prompts.jsonl").read_text()
    (folder / "prompts.jsonl").write_text(prompts * 4)
    flags = [f"--input.path={folder / 'prompts.jsonl'}", f"--output.path={folder / 'run'}", "--run.rows_per_unit=25"]
    flags += [f"--models.target={pair / 'target'}", f"--models.draft={pair / 'draft'}", "--engine.draft_length=fixed"]
    flags += ["--models.device=cpu", "--sampling.max_tokens=100", "--engine.num_speculative_tokens=4"]
    flags += [f"--actors.{size}_actors={num_actors}" for size in ("max", "min")]
    plan = make_plan(load(RunConfig, flags, "benchmarks.scale"))
    run_directory = create_run(plan)
    missing = MissingUnits.of(run_directory, plan.tokens_per_row)
    seconds, counts = measure_actors(missing, EngineWorker, {"spec": worker_spec(plan, run_directory)}, plan.pool)
    return Spread(num_actors, missing.num_units, seconds, counts)
