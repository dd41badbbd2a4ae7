"""TrainingState: where a training is, and its checkpoint in a folder.

state.json   the steps done, the place in the texts, the loss curve
weights.pt   the weights that are trained and the optimizer's state; not in the last checkpoint
draft/       in the last checkpoint: the draft, as it is loaded for drafting
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from training.learners.packing import Learner
from training.trainer.optimizer import Optimizer
from training.trainer.row_stream import Place

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

    def finished(self) -> TrainingState:
        """Return this state, after which there is nothing to train."""
        return replace(self, is_finished=True)


def write_weights(folder: Path, learner: Learner, optimizer: Optimizer) -> None:
    """Write what changes while a draft learns into a checkpoint."""
    trained = {name: weight.detach() for name, weight in _trained(learner).items()}
    torch.save({"weights": trained, "optimizer": optimizer.state()}, folder / _WEIGHTS)


def restore_weights(folder: Path, learner: Learner, optimizer: Optimizer) -> None:
    """Set a learner that was just loaded, and its optimizer, to what a checkpoint holds."""
    found = torch.load(folder / _WEIGHTS, map_location="cpu", weights_only=True)
    with torch.no_grad():
        for name, weight in _trained(learner).items():
            weight.copy_(found["weights"][name])
    optimizer.restore(found["optimizer"])


def _trained(learner: Learner) -> dict[str, torch.nn.Parameter]:
    return {name: weight for name, weight in learner.module.named_parameters() if weight.requires_grad}
