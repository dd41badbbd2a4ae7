"""Board: where the first worker writes how training goes, and the driver reads it and may ask for a stop.

Workers of Ray Train cannot be called while they train, and what they report arrives at its controller alone.
"""

from __future__ import annotations

import ray

from training.trainer.progress import TrainingProgress


@ray.remote(num_cpus=0)
class Board:
    """An actor with the newest progress, and whether training is to stop."""

    def __init__(self) -> None:
        """Begin with nothing written."""
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
