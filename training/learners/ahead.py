"""AheadLearner: what all heads have in common that learn to draft several tokens ahead.

At step k a head predicts token p + 2 + k from pair p, which is what the target computes at position p, and the token
behind it; the target's own prediction of that token stands at position p + 1 + k.

Shapes: B rows, T tokens, X pairs that a step teaches, N predictions that are taught, D vocabulary of the head, V of the
target.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from training.learners.losses import LossName, TargetLaw, scaled, token_losses
from training.learners.packing import PackedRows, StepResult
from training.learners.teacher import Teacher


@dataclass(frozen=True, kw_only=True)
class AheadLearner(ABC):
    """A head in float32, and the teacher that it learns from."""

    teacher: Teacher
    network: nn.Module  # that is trained
    steps_ahead: int
    loss: LossName = "kl"

    @property
    def max_len(self) -> int | None:
        """The longest document that target and head can read; None: any."""
        return self.teacher.max_len

    @property
    def every(self) -> int:
        """How far apart the pairs are of which drafts begin: a block for each would be many."""
        return 1

    def readable(self, rows: PackedRows) -> PackedRows:
        """Return rows whose documents target and head tell: one for each document, unless both tell those of a row."""
        return rows.apart()

    @abstractmethod
    def drafted(self, rows: PackedRows) -> tuple[torch.Tensor, Iterator[tuple[torch.Tensor, ...]]]:
        """Return the target's logits [B, T, V], and for each step ahead the head's, [B, X, D], by all its parts.

        Each part learns. The last one is what tokens are picked by.
        """

    @abstractmethod
    def save(self, folder: str) -> None:
        """Write the head into a new folder, as it is loaded for drafting."""

    def num_predictions(self, rows: PackedRows) -> int:
        """Return how many predictions are taught, over all steps ahead."""
        return sum(int(is_taught_BX.sum()) for is_taught_BX in self._taught(self.readable(rows)))

    def step(self, rows: PackedRows, progress: float) -> StepResult:
        """Return the loss over all predictions of all steps ahead; what is agreed on is counted at the first one."""
        rows = self.readable(rows)
        logits_BTV, steps = self.drafted(rows)
        target_ids_D, head_ids_V = self._ids(logits_BTV.device)
        device_type = logits_BTV.device.type
        loss = agreed = outside = logits_BTV.new_zeros(())
        with torch.autocast(device_type, torch.bfloat16, enabled=device_type == "cuda"):
            for step, (parts, is_taught_BX) in enumerate(zip(steps, self._taught(rows), strict=True)):
                at = slice(1 + step, None, self.every)  # the target's prediction stands this far behind the pair
                temperatures_N = rows.temperatures_BT[:, at][is_taught_BX]
                law = TargetLaw.of(logits_BTV[:, at][is_taught_BX], temperatures_N, target_ids_D)
                token_ids_N = head_ids_V[rows.token_ids_BT.roll(-1, 1)[:, at][is_taught_BX]]
                for drafted_BXD in parts:
                    scaled_ND = scaled(drafted_BXD[is_taught_BX], temperatures_N)
                    losses_N = token_losses(self.loss, scaled_ND, law, token_ids_N, progress)
                    loss = loss + losses_N.sum() / len(parts)
                if step == 0:
                    best_N = scaled_ND.argmax(-1)
                    agreed = ((best_N if target_ids_D is None else target_ids_D[best_N]) == law.best_N).sum()
                    outside = law.outside_N.sum()
        return StepResult(loss, agreed, outside)

    def _taught(self, rows: PackedRows) -> Iterator[torch.Tensor]:
        """Yield for each step ahead which pairs [B, X] predict an output token of their own document."""
        for step in range(min(self.steps_ahead, rows.token_ids_BT.shape[1] - 1)):
            of_pairs, ahead = slice(0, -1 - step, self.every), slice(1 + step, None, self.every)
            is_own_BX = rows.documents_BT[:, of_pairs] == rows.documents_BT[:, ahead]
            yield is_own_BX & rows.is_taught_BT[:, ahead]

    def _ids(self, device: torch.device) -> tuple[torch.Tensor | None, torch.Tensor]:
        """Return the target's ids of the head's tokens (None: all), and for each target id the head's, or -1."""
        return None, torch.arange(self.teacher.vocab_size, device=device)
