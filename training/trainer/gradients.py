"""The gradients of a step: forward and backward over some packed rows, few of them at once."""

import torch

from training.learners.learner import Learner
from training.learners.packing import PackedRow, PackedRows

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
