"""TrainingProgress: what is known of a training after a step, and the Board on which the driver reads it."""

from __future__ import annotations

from dataclasses import dataclass

import ray


@dataclass(frozen=True)
class TrainingProgress:
    """A step, over all workers."""

    step: int
    num_steps: int
    loss: float  # of a prediction
    agreement: float  # share of tokens whose most likely next token is the target's
    outside: float  # the target's probability of tokens that the draft does not know, on average
    num_tokens: int  # read so far, prompts and repetitions included
    tokens_per_s: float
    seconds: float  # of training so far, restarts included
    seconds_left: float
    worker_pid: int  # the process of the first worker

    def point(self) -> dict[str, float]:
        """Return what the loss curve keeps of it."""
        names = ("step", "loss", "agreement", "outside", "num_tokens")
        return {**{name: getattr(self, name) for name in names}, "seconds": round(self.seconds, 2)}


@ray.remote(num_cpus=0)
class Board:
    """An actor with the newest progress, and whether training is to stop.

    Workers of Ray Train cannot be called while they train, and what they report arrives at its controller alone.
    """

    def __init__(self) -> None:
        self._newest: TrainingProgress | None = None
        self._must_stop = False

    def write(self, progress: TrainingProgress) -> bool:
        """Set the newest progress; return whether training is to stop."""
        self._newest = progress
        return self._must_stop

    def read(self) -> TrainingProgress | None:
        """Return the newest progress; None before the first step."""
        return self._newest

    def stop(self) -> None:
        """Let training write a checkpoint and stop."""
        self._must_stop = True
