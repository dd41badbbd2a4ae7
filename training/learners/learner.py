"""Learner: what a trainer needs of a draft that learns, whatever its kind."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from training.learners.packing import PackedRows


@dataclass(frozen=True)
class StepResult:
    """Sums over the tokens of some rows; sums of several steps and workers add up."""

    loss: torch.Tensor  # over all predictions, with its gradient
    num_agreed: torch.Tensor  # tokens whose most likely next token is the target's
    outside: torch.Tensor  # the target's probability of tokens that the draft does not know


class Learner(Protocol):
    """A draft that learns from rows of text, beside its target, which is frozen."""

    @property
    def module(self) -> nn.Module:
        """What is trained: its parameters that want a gradient."""

    @property
    def max_len(self) -> int | None:
        """The longest document that target and draft can read; None: any."""

    def num_predictions(self, rows: PackedRows) -> int:
        """Return how many predictions of these rows the loss is summed over."""

    def step(self, rows: PackedRows, progress: float) -> StepResult:
        """Return the loss on some rows; `progress` goes from 0 to 1 over the training."""

    def save(self, folder: str) -> None:
        """Write the draft into a new folder, as it is loaded for drafting."""
