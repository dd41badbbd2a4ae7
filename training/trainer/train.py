"""The training of a draft on a Ray cluster, from a plan to a folder with the draft and where it comes from."""

import os
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import ray
from ray.train import (
    CheckpointConfig,
    ControllerError,
    FailureConfig,
    Result,
    RunConfig,
    ScalingConfig,
    TrainingFailedError,
)
from ray.train.torch import TorchTrainer
from ray.train.v2.api.config import LoggingConfig

from actors.identity import library_versions
from pipeline.storage.location import Location
from training.trainer.checkpoint import DRAFT, Board, TrainingProgress, TrainingState
from training.trainer.loop import train_loop
from training.trainer.output import finished_provenance, publish
from training.trainer.plan import TrainingPlan

_SNAPSHOT = "checkpoint_manager_snapshot.json"  # Ray Train's list of checkpoints
_LOOKS_EVERY_S = 0.5


@dataclass(frozen=True)
class TrainedDraft:
    """A draft that was trained and written."""

    path: str
    steps: int
    num_tokens: int  # read, prompts and repetitions included
    seconds: float
    curve: list[dict[str, float]]  # step, loss, agreement, outside, num_tokens and seconds of some steps


class TrainingInterrupted(Exception):
    """Training was asked to stop, and has written a checkpoint to go on from."""


def train_planned(
    plan: TrainingPlan,
    output: str,
    storage: str | None = None,
    progress: Callable[[TrainingProgress], None] | None = None,
    stop: threading.Event | None = None,
) -> TrainedDraft:
    """Train a draft on the workers of the cluster that this process has joined, and return it once it is written.

    Nothing else of the cluster is touched: workers wait for room for themselves, and each reads the texts. `storage` is
    a folder for checkpoints that all nodes can write, by default beside `output`. A call with the same arguments goes
    on from the last checkpoint, after whatever ended the one before. `stop` lets a training end at a checkpoint from
    another thread.

    Raises ValueError or OSError, in one line, for what cannot be trained, and TrainingInterrupted after a stop.
    """
    place = Location.parse(output)
    if (provenance := finished_provenance(place, plan.identity)) is not None:
        return _trained(place, provenance)
    checkpoints = Location.parse(storage or checkpoints_beside(output)).child(f"training-{plan.identity[:16]}")
    result = _fit(plan, checkpoints, progress, stop or threading.Event())
    returned: dict[str, Any] = result.return_value or {"error": "training ended without a result"}
    if "error" in returned:
        raise ValueError(returned["error"])
    state: TrainingState = returned["state"]
    if not state.is_finished:
        raise TrainingInterrupted(
            f"training was stopped after step {state.step} of {plan.num_steps}; the same command goes on from there"
        )
    assert result.checkpoint is not None, "a training that is finished has reported its draft"
    provenance = provenance_of(plan, state)
    with result.checkpoint.as_directory() as folder:
        publish(Path(folder) / DRAFT, provenance, place)
    checkpoints.retrying("deleting", lambda: checkpoints.filesystem.delete_dir(checkpoints.path))
    return _trained(place, provenance)


def checkpoints_beside(output: str) -> str:
    """Return the place for checkpoints unless another one is named: a hidden folder beside the output."""
    path, mark, options = output.partition("?") if "://" in output else (output, "", "")
    parent, _, name = path.rstrip("/").rpartition("/")
    return (f"{parent}/.{name}.training" if parent else f".{name}.training") + mark + options


def _trained(output: Location, provenance: dict[str, Any]) -> TrainedDraft:
    return TrainedDraft(
        output.name, provenance["steps"], provenance["num_tokens"], provenance["seconds"], provenance["curve"]
    )


def provenance_of(plan: TrainingPlan, state: TrainingState) -> dict[str, Any]:
    """Return the content of provenance.json: what the draft was made of, and how."""
    corpus, counts = plan.corpus, plan.counts
    return {
        "identity": plan.identity,
        "corpus": {
            "fingerprint": plan.fingerprints["corpus"],
            "paths": corpus.options.paths,
            "runs": {facts.path: facts.digest for facts in corpus.runs},
            "num_rows": counts.num_rows,
            "num_output_tokens": counts.num_output_tokens,
            "held_out_share": corpus.options.held_out_share,
        },
        "models": asdict(plan.models),
        "fingerprints": plan.fingerprints,
        "options": asdict(plan.options),
        "workers": asdict(plan.workers),
        "seed": plan.options.seed,
        "coverage": plan.coverage,
        "steps": state.step,
        "num_tokens": state.num_tokens,
        "seconds": state.seconds,
        "versions": library_versions(),
        "metrics": state.curve[-1] if state.curve else {},
        "curve": state.curve,
    }


def _fit(
    plan: TrainingPlan,
    checkpoints: Location,
    progress: Callable[[TrainingProgress], None] | None,
    stop: threading.Event,
) -> Result:
    """Run Ray Train in a thread of its own, where it installs no signal handler, and tell of its progress meanwhile."""
    board = Board.remote()  # type: ignore[attr-defined]
    found: list[Result | BaseException] = []

    def fit() -> None:
        try:
            found.append(_fit_with_the_workers_there_is_room_for(plan, checkpoints, board))
        except BaseException as error:  # noqa: BLE001  # raised again in the caller's thread
            found.append(error)

    thread = threading.Thread(target=fit, name="training", daemon=True)
    thread.start()
    told = was_asked = None
    while thread.is_alive():
        thread.join(_LOOKS_EVERY_S)
        try:
            if stop.is_set() and not was_asked:
                was_asked = board.stop.remote()
            newest = ray.get(board.read.remote())
        except ray.exceptions.RayActorError:
            newest = None  # training goes on without being looked at
        if progress is not None and newest is not None and newest != told:
            told = newest
            progress(newest)
    ray.kill(board)
    (outcome,) = found
    if isinstance(outcome, TrainingFailedError):
        raise OSError(f"training failed: {_in_one_line(outcome)}") from outcome
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


def _fit_with_the_workers_there_is_room_for(plan: TrainingPlan, checkpoints: Location, board: Any) -> Result:
    """Train, and go on from the last checkpoint with fewer workers where Ray Train has counted on more than fit.

    Ray Train counts the CPUs and GPUs of the cluster that no library has announced. Those that an actor holds without
    an announcement are among them, and then it asks for the same number of workers again and again.
    """
    while True:
        try:
            return _trainer(plan, checkpoints, board).fit()
        except ControllerError:
            if not plan.workers.is_elastic:
                raise
        free = ray.available_resources()
        num = min(
            (int(free.get(name, 0) // amount) for name, amount in plan.workers.demand.items() if amount),
            default=plan.workers.num,
        )
        plan = replace(plan, workers=plan.workers.at_most(min(num, plan.workers.num - 1)))


def _trainer(plan: TrainingPlan, checkpoints: Location, board: Any) -> TorchTrainer:
    workers = plan.workers
    # Otherwise each worker changes its working directory, and finds no module whose path is relative.
    os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")
    # Ray Train's controller takes one checkpoint each time that it looks, by default every two seconds.
    os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.5")
    checkpoints.make_folder()
    _drop_damaged(checkpoints)
    return TorchTrainer(
        train_loop,
        train_loop_config={"plan": plan, "board": board},
        scaling_config=ScalingConfig(
            num_workers=(workers.min_num, workers.num) if workers.is_elastic else workers.num,
            use_gpu=workers.num_gpus > 0,
            resources_per_worker=workers.demand,
        ),
        run_config=RunConfig(
            name=checkpoints.short_name,
            storage_path=checkpoints.path.rpartition("/")[0],
            storage_filesystem=checkpoints.filesystem,
            failure_config=FailureConfig(
                max_failures=workers.max_failures, controller_failure_limit=0 if workers.is_elastic else -1
            ),
            checkpoint_config=CheckpointConfig(num_to_keep=1),
            logging_config=LoggingConfig(log_level="ERROR"),
        ),
    )


def _drop_damaged(checkpoints: Location) -> None:
    """Delete Ray Train's list of checkpoints if a driver died while it was written; training begins anew then."""
    snapshot = checkpoints.child(_SNAPSHOT)
    content = snapshot.read_if_there()
    if content is not None and not content.rstrip().endswith(b"}"):
        snapshot.remove()


def _in_one_line(error: TrainingFailedError) -> str:
    failures = getattr(error, "worker_failures", None) or {}
    for rank, failure in failures.items():
        lines = str(failure).strip().splitlines()
        return f"worker {rank}: {type(failure).__name__}: {lines[-1] if lines else ''}"
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__
