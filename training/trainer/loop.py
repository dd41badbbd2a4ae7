"""The loop that each worker of a training runs, on Ray Train.

Every worker reads the whole stream of packed rows and takes its share of each step's rows, so that the rows of a step
are the same whatever the number of workers, also after that number has changed. Gradients are summed over the workers
once a step.
"""

import math
import os
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
import ray.train
import torch
import torch.distributed
from ray.train import Checkpoint

from training.learners.packing import Learner, PackedRow, PackedRows, RowStream
from training.trainer.checkpoint import DRAFT, TrainingProgress, TrainingState, restore_weights, write_weights
from training.trainer.optimizer import Optimizer, add_gradients
from training.trainer.plan import TrainingPlan

_CURVE_POINTS = 200


class TrainingStopped(ValueError):
    """Training cannot go on, and would fail again if it were begun again."""


def train_loop(config: Mapping[str, Any]) -> dict[str, Any]:
    """Train, and return {"state": ...}, or {"error": ...} for what no restart would mend.

    An exception would make Ray Train begin again from the last checkpoint, as it shall for a worker that dies.
    """
    try:
        return {"state": _Loop(config["plan"], config["board"]).run()}
    except ValueError as error:
        return {"error": " ".join(str(error).split())}


class _Loop:
    """One worker's part of a training."""

    def __init__(self, plan: TrainingPlan, board: Any) -> None:
        context = ray.train.get_context()
        self._plan, self._options, self._board = plan, plan.options, board
        self._rank, self._num_workers = context.get_world_rank(), context.get_world_size()
        self._asked: Any = None  # the answer of the board to the last step
        self._state = TrainingState()

    def run(self) -> TrainingState:
        """Train from the last checkpoint to the end, or until a stop is asked for."""
        checkpoint = ray.train.get_checkpoint()
        if checkpoint is None:
            return self._train(None)
        with checkpoint.as_directory() as folder:
            self._state = TrainingState.read(Path(folder))
            return self._state if self._state.is_finished else self._train(Path(folder))

    def _train(self, restored: Path | None) -> TrainingState:
        options, learner = self._options, self._plan.learner()
        optimizer = Optimizer(learner.network, options.learning_rate, options.warmup, options.clip)
        if restored is not None:
            restore_weights(restored, learner, optimizer)
        place = self._state.place
        stream = RowStream(self._plan.documents, options.seq_len, learner.max_len, options.seed, place)
        learner.network.zero_grad()
        must_stop, began, before_s = False, time.monotonic(), self._state.seconds
        with ThreadPoolExecutor(1) as reader:  # it reads the rows of the next step while this one is computed
            taken = reader.submit(lambda: (stream.take(options.rows_per_step), stream.place))
            while not must_stop and self._progress() < 1.0:
                rows, place = taken.result()
                taken = reader.submit(lambda: (stream.take(options.rows_per_step), stream.place))
                sums = self._step(learner, optimizer, rows)
                seconds = before_s + time.monotonic() - began
                seconds, must_stop = self._agreed(seconds, self._must_stop())
                self._state = replace(
                    self._state,
                    step=self._state.step + 1,
                    place=place,
                    num_tokens=self._state.num_tokens + sum(row.num_tokens for row in rows),
                    seconds=seconds,
                )
                self._note(sums)
                is_due = self._state.step % options.checkpoint_every == 0
                if (is_due or must_stop) and self._progress() < 1.0:
                    self._report(learner, optimizer)
        if self._progress() >= 1.0:
            self._state = replace(self._state, is_finished=True)
            self._report(learner, None)
        return self._state

    def _progress(self, share_of_step: float = 0.0) -> float:
        """Return how much of the training is done, by steps or by hours, whichever is more."""
        done = (self._state.step + share_of_step) / self._plan.num_steps
        if self._options.max_hours is not None:
            done = max(done, self._state.seconds / (3600 * self._options.max_hours))
        return done

    def _step(self, learner: Learner, optimizer: Optimizer, rows: list[PackedRow]) -> dict[str, float]:
        """Do a step, and return what is to be told of it. Raises TrainingStopped if its loss is not a number."""
        whole = PackedRows.of(rows)
        num_predictions, num_taught = learner.num_predictions(whole), int(whole.is_taught_BT.sum())
        progress = min(self._progress(0.5), 1.0)
        own = rows[self._rank :: self._num_workers]
        sums = add_gradients(learner, own, num_predictions, progress, self._plan.device())
        self._sum_over_workers(sums)
        loss, num_agreed, outside = sums.tolist()
        if not math.isfinite(loss):
            raise TrainingStopped(self._not_finite("loss", loss))
        self._sum_gradients(optimizer)
        norm = optimizer.step(progress)
        if not math.isfinite(norm):
            raise TrainingStopped(self._not_finite("norm of the gradient", norm))
        return {
            "loss": loss / max(num_predictions, 1),
            "agreement": num_agreed / max(num_taught, 1),
            "outside": outside / max(num_taught, 1),
        }

    def _not_finite(self, what: str, value: float) -> str:
        return (
            f"the {what} is {value} at step {self._state.step + 1}: training stops, and nothing is written; lower "
            f"train.learning_rate ({self._options.learning_rate:g}), raise train.warmup, or look at the models' weights"
        )

    def _sum_over_workers(self, values: torch.Tensor) -> None:
        if self._num_workers > 1:
            torch.distributed.all_reduce(values)

    def _sum_gradients(self, optimizer: Optimizer) -> None:
        """Add up the gradients of all workers; one that had no rows adds nothing."""
        if self._num_workers == 1:
            return
        for weight in optimizer.parameters:
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
            torch.distributed.all_reduce(weight.grad)

    def _agreed(self, seconds: float, must_stop: bool) -> tuple[float, bool]:
        """Return the first worker's clock, and whether any worker is to stop: all must do the same steps."""
        said = torch.tensor([seconds if self._rank == 0 else 0.0, float(must_stop)], dtype=torch.float64)
        said = said.to(self._plan.device())
        self._sum_over_workers(said)
        return float(said[0]), bool(said[1])

    def _must_stop(self) -> bool:
        """Return whether the driver has asked for a stop, by the board's answer to the step before."""
        if self._asked is None:
            return False
        with suppress(ray.exceptions.RayError):  # a board that is gone asks for nothing
            return bool(ray.get(self._asked))
        return False

    def _note(self, sums: dict[str, float]) -> None:
        """Tell the board of the step that was done, and keep a point of the curve now and then."""
        state = self._state
        progress = self._progress()
        noted = TrainingProgress(
            step=state.step,
            num_steps=self._plan.num_steps,
            num_tokens=state.num_tokens,
            tokens_per_s=state.num_tokens / max(state.seconds, 1e-9),
            seconds=state.seconds,
            worker_pid=os.getpid(),
            seconds_left=state.seconds * max(1 - progress, 0.0) / progress,
            **sums,
        )
        every = max(1, self._plan.num_steps // _CURVE_POINTS)
        if state.step % every == 0 or progress >= 1.0:
            self._state = replace(state, curve=[*state.curve, noted.point()])
        if self._rank == 0:
            self._asked = self._board.write.remote(noted)

    def _report(self, learner: Learner, optimizer: Optimizer | None) -> None:
        """Write a checkpoint, in which all workers take part: with the optimizer to go on, else the finished draft."""
        metrics = {"step": self._state.step}
        if self._rank != 0:
            ray.train.report(metrics)
            return
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            self._state.write(folder)
            if optimizer is None:
                learner.save(str(folder / DRAFT))
            else:
                write_weights(folder, learner, optimizer)
            ray.train.report(metrics, checkpoint=Checkpoint.from_directory(folder))
