"""The gradients of a step, and the Optimizer that applies them: AdamW with a warm-up, a cosine and a clip."""

import math

import torch
from torch import nn

from training.learners.packing import Learner, PackedRow, PackedRows

_BETAS, _WEIGHT_DECAY = (0.9, 0.95), 0.01


class Optimizer:
    """The optimizer of a module's trainable parameters, and its state."""

    def __init__(self, module: nn.Module, learning_rate: float, warmup: float, clip: float) -> None:
        """Begin with no step done; `warmup` is a share of the training."""
        self.parameters = [weight for weight in module.parameters() if weight.requires_grad]
        self._learning_rate, self._warmup, self._clip = learning_rate, warmup, clip
        self.adam = torch.optim.AdamW(self.parameters, lr=learning_rate, betas=_BETAS, weight_decay=_WEIGHT_DECAY)

    def step(self, progress: float) -> float:
        """Apply and drop the gradients, at a progress from 0 to 1; return their norm.

        Gradients whose norm is not finite are dropped alone.
        """
        norm = float(nn.utils.clip_grad_norm_(self.parameters, self._clip))
        if math.isfinite(norm):
            for group in self.adam.param_groups:
                group["lr"] = self._learning_rate * learning_rate_factor(progress, self._warmup)
            self.adam.step()
        self.adam.zero_grad()
        return norm


def learning_rate_factor(progress: float, warmup: float) -> float:
    """Return the share of the largest learning rate: rising in the warm-up, then falling along a cosine to zero."""
    if progress < warmup:
        return progress / warmup
    return 0.5 + 0.5 * math.cos(math.pi * min((progress - warmup) / (1 - warmup), 1.0))


_TOKENS_AT_ONCE = 4096  # of a forward: the logits of a large vocabulary take gigabytes


def add_gradients(
    learner: Learner, rows: list[PackedRow], num_predictions: int, progress: float, device: torch.device
) -> torch.Tensor:
    """Add the gradients of these rows to the learner's; return float64 sums of loss, agreement and mass outside.

    The loss is that of one of the `num_predictions` of the whole step, so that the gradients of all its rows add up.
    """
    sums = torch.zeros(3, dtype=torch.float64, device=device)
    at_once = max(1, _TOKENS_AT_ONCE // max((row.num_tokens for row in rows), default=1))
    for first in range(0, len(rows), at_once):
        result = learner.step(PackedRows.of(rows[first : first + at_once], device), progress)
        (result.loss / max(num_predictions, 1)).backward()  # type: ignore[no-untyped-call]
        sums += torch.stack([each.detach().double() for each in (result.loss, result.num_agreed, result.outside)])
    return sums
