"""The work of `dray train-draft`: a draft, or a head, is trained on the texts that its target has written.

Interrupted or killed, the same command goes on from the last checkpoint. Ctrl-C or SIGTERM lets training write one.
"""

import sys
import threading
import time

import ray
from rich.console import Console
from rich.table import Table

from actors.resources import lack_of_room
from decoding.cache.footprint import GIB
from jobs.config.train import TrainConfig
from jobs.driver.cluster import check_submitted, paths_of, start_ray
from jobs.driver.progress import format_seconds
from jobs.driver.stopping import Exit, bad_configuration, graceful_stop, interrupted
from jobs.driver.watches import watching
from jobs.names import tell
from pipeline.storage.location import Location
from training.trainer.checkpoint import TrainingProgress
from training.trainer.options import WorkerOptions
from training.trainer.output import finished_provenance
from training.trainer.plan import TrainingPlan, measured_seconds
from training.trainer.train import TrainedDraft, TrainingInterrupted, train_planned

_GOES_ON = "; the same command goes on from the last checkpoint"
_SECONDS_BETWEEN_LINES = 10.0
_LONGEST_PATIENCE_S = 600.0
_SECONDS_TO_STOP = 120.0  # for the step under way and a checkpoint


def train(config: TrainConfig) -> Exit:
    """Train, and return the exit code: 0 done, 1 failed, 2 wrong configuration, 3 stopped or interrupted."""
    try:
        outputs = {"output.path": config.output.path, "run.storage": config.run.storage}
        check_submitted(outputs, {"corpus.path": config.corpus.path, **paths_of(config.models)})
        plan = TrainingPlan.make(config.models, config.corpus, config.train_options(), config.workers)
        finished_provenance(Location.parse(config.output.path), plan.identity)
        if config.dry_run:
            print_plan(plan, config)
            return Exit.COMPLETE
    except (ValueError, OSError) as error:
        return bad_configuration(error)
    except KeyboardInterrupt:
        return interrupted(_GOES_ON)
    try:
        return _train(plan, config)
    except KeyboardInterrupt:
        return interrupted(_GOES_ON)
    except TrainingInterrupted as stopped:
        print(stopped, file=sys.stderr)
        return Exit.INCOMPLETE
    except (ValueError, OSError, ray.exceptions.RayError) as error:
        said = str(error) if isinstance(error, ValueError | OSError) else f"{type(error).__name__}: {error}"
        tell(f"error: {' '.join(said.split())}")
        print("no output was written; mend the cause and run the same command again", file=sys.stderr)
        return Exit.FAILED


def _train(plan: TrainingPlan, config: TrainConfig) -> Exit:
    start_ray(config.run.ray_address)
    stop, has_begun = threading.Event(), threading.Event()
    last_line = float("-inf")

    def shown(progress: TrainingProgress) -> None:
        """Print a line now and then, the first step's and the last one's among them."""
        nonlocal last_line
        has_begun.set()
        now, is_last = time.monotonic(), progress.step == progress.num_steps
        if config.run.progress == "lines" and (is_last or now - last_line >= _SECONDS_BETWEEN_LINES):
            last_line = now
            print(line(progress), file=sys.stderr, flush=True)

    with graceful_stop(stop.set, _SECONDS_TO_STOP), watching(tell_of_waiting, has_begun, plan.workers):
        trained = train_planned(plan, config.output.path, config.run.storage, shown, stop)
    print_trained(trained, plan)
    return Exit.COMPLETE


def tell_of_waiting(
    ended: threading.Event, has_begun: threading.Event, workers: WorkerOptions, patience_s: float = 20.0
) -> None:
    """Print what the cluster lacks for the workers until training begins: after `patience_s`, then ever more rarely."""
    while not ended.wait(patience_s) and not has_begun.is_set():
        lack = lack_of_room("workers", workers.min_num or workers.num, workers.demand, ray.nodes())
        if lack is not None:
            print(
                f"waiting for workers: {lack}. An autoscaling cluster adds nodes; else stop this command, and lower "
                "workers.num, workers.min_num, or what a worker takes",
                file=sys.stderr,
                flush=True,
            )
        patience_s = min(3 * patience_s, _LONGEST_PATIENCE_S)


def line(progress: TrainingProgress) -> str:
    """Return the state of a training as one line."""
    parts = [
        f"step {progress.step}/{progress.num_steps}",
        f"loss {progress.loss:.4f}",
        f"agreement {progress.agreement:.3f}",
        f"{progress.tokens_per_s:,.0f} tokens/s",
        f"{format_seconds(progress.seconds_left)} left",
    ]
    return "  ".join(parts)


def print_plan(plan: TrainingPlan, config: TrainConfig) -> None:
    """Print what the training would do; load the models only to measure."""
    console, counts, options = Console(highlight=False), plan.counts, plan.options
    what = f"a new {options.what} head" if plan.models.draft is None else plan.models.draft
    console.print(f"Training of {what} for {plan.models.target}, into {config.output.path}")
    console.print(f"  texts:   {counts.num_rows:,} rows, {counts.num_taught:,} output tokens to learn from")
    if num_cut := counts.num_output_tokens - counts.num_taught:
        share = num_cut / counts.num_output_tokens
        console.print(
            f"  cut:     {num_cut:,} output tokens ({share:.1%}) stand behind the end of a row, train.seq_len"
        )
    num_epochs = plan.num_steps * options.rows_per_step * options.seq_len / counts.num_tokens
    console.print(f"  read:    {counts.num_tokens:,} tokens with their prompts, about {num_epochs:.1f} times")
    size = f"{options.rows_per_step} rows of {options.seq_len} tokens"
    console.print(f"  steps:   {plan.num_steps:,} of {size}, over {plan.workers.num} workers")
    if plan.known_ids is not None:
        console.print(f"  tokens:  the head knows {len(plan.known_ids):,}, {plan.coverage:.2%} of the output")
    console.print(
        f"  memory:  {plan.num_bytes / GIB:.2f} GiB a worker, without what a forward takes (AdamW in float32)"
    )
    seconds = measured_seconds(plan) if config.measure else None
    if seconds is not None:
        console.print(f"  time:    {format_seconds(seconds)}, by a few steps on this machine")
    if (worth := config.worth.worth()) is None:
        return
    console.print(
        f"  worth:   {worth.remaining_tokens:,} tokens / {worth.tokens_per_s:g} a second * (1 - "
        f"{worth.length_before:g} / {worth.length_after:g}) = {format_seconds(worth.seconds_saved)} saved, if a round "
        "takes as long as before"
    )
    if seconds is not None:
        verdict = "training pays" if worth.seconds_saved > seconds else "training does not pay"
        console.print(f"           {verdict} on machines that would idle, or that count as much as the run's")


def print_trained(trained: TrainedDraft, plan: TrainingPlan) -> None:
    """Print how training went, from its first part to its last."""
    table = Table("step", "tokens", "loss", "agreement", title=trained.path, title_justify="left")
    curve = trained.curve
    for index in sorted({len(curve) * part // 4 for part in range(4)} | {len(curve) - 1}) if curve else []:
        point = curve[index]
        counts, shares = (point["step"], point["num_tokens"]), (f"{point['loss']:.4f}", f"{point['agreement']:.3f}")
        table.add_row(*(f"{count:,.0f}" for count in counts), *shares)
    console = Console(highlight=False)
    console.print(table)
    if plan.known_ids is not None:
        console.print(f"the head knows {len(plan.known_ids):,} tokens, {plan.coverage:.2%} of the output")
    console.print(f"{trained.steps:,} steps over {trained.num_tokens:,} tokens in {format_seconds(trained.seconds)}")
