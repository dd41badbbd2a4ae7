"""TrainingState: where a training is, its checkpoint in a folder, and the Board on which the driver reads of it.

state.json   the steps done, the place in the texts, the loss curve
weights.pt   the weights that are trained and the optimizer's state; not in the last checkpoint
draft/       in the last checkpoint: the draft, as it is loaded for drafting
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import ray
import torch

from training.learners.packing import Learner, Place
from training.trainer.optimizer import Optimizer


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


DRAFT = "draft"
_STATE, _WEIGHTS = "state.json", "weights.pt"


@dataclass(frozen=True)
class TrainingState:
    """What a training has done so far, over all its workers and restarts."""

    step: int = 0
    place: Place = field(default_factory=Place)
    num_tokens: int = 0
    seconds: float = 0.0
    is_finished: bool = False
    curve: list[dict[str, float]] = field(default_factory=list)  # a point for every part of the training

    @classmethod
    def read(cls, folder: Path) -> TrainingState:
        """Read it from a checkpoint."""
        values: dict[str, Any] = json.loads((folder / _STATE).read_text())
        return cls(**{**values, "place": Place(**values["place"])})

    def write(self, folder: Path) -> None:
        """Write it into a checkpoint."""
        (folder / _STATE).write_text(json.dumps(asdict(self)))


def write_weights(folder: Path, learner: Learner, optimizer: Optimizer) -> None:
    """Write what changes while a draft learns into a checkpoint."""
    trained = {name: weight.detach() for name, weight in _trained(learner).items()}
    torch.save({"weights": trained, "optimizer": optimizer.adam.state_dict()}, folder / _WEIGHTS)


def restore_weights(folder: Path, learner: Learner, optimizer: Optimizer) -> None:
    """Set a learner that was just loaded, and its optimizer, to what a checkpoint holds."""
    found = torch.load(folder / _WEIGHTS, map_location="cpu", weights_only=True)
    with torch.no_grad():
        for name, weight in _trained(learner).items():
            weight.copy_(found["weights"][name])
    optimizer.adam.load_state_dict(found["optimizer"])


def _trained(learner: Learner) -> dict[str, torch.nn.Parameter]:
    return {name: weight for name, weight in learner.network.named_parameters() if weight.requires_grad}
