"""The grammars of a round: masks that the host computes while the target reads, and the check of picks without them.

Shapes: B rows, J positions, W words of 32 token ids, V vocabulary.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from math import prod

import torch

from decoding.sampling.judging import check
from decoding.sampling.masks import TokenMasks
from decoding.sampling.rows import Rows
from decoding.sampling.verdicts import RowVerdict


@dataclass
class RoundGrammars:
    """The rows of a round, of which some have grammars."""

    rows: Rows
    num_logprobs: tuple[int | None, ...]  # as in `ScoreRequest`
    corrected: list[int] = field(default_factory=list)  # rows whose picks were forbidden, and that were judged again

    def masks(self, drafted: Seq[Seq[int]], num_positions: int) -> TokenMasks:
        """Return the masks along these drafts of the rows whose masks come before their picks."""
        counts = [len(tokens) for tokens in drafted]
        return TokenMasks.of(self.rows.sequences, drafted, 0, num_positions, counts, self.rows.masked_first)

    def check(self, logits_BJV: torch.Tensor, verdicts: list[RowVerdict]) -> None:
        """Judge those rows again that were judged without masks and got tokens which their grammars forbid."""
        self.corrected = check(self.rows, self.num_logprobs, 0.0, logits_BJV, verdicts)


class MaskBuffers:
    """Masks of some rows, and before them where each row's are: -1 for a row to which all is allowed."""

    def __init__(self, shape: tuple[int, int, int], device: torch.device) -> None:
        """Make room for masks of this shape [B, J, W]."""
        num_numbers = shape[0] + prod(shape)
        self._shape = shape
        self._numbers = torch.zeros(num_numbers, dtype=torch.int32, device=device)
        # The next round begins when this one has been read, so what is on its way is not overwritten.
        self._sent = torch.zeros(num_numbers, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._on_host = self._sent.numpy()

    def take(self, masks: TokenMasks) -> None:
        """Copy masks to the device, in one copy."""
        num_rows, end = self._shape[0], self._shape[0] + masks.packed_RJW.numel() * bool(masks.rows)
        self._on_host[:num_rows] = -1
        self._on_host[list(masks.rows)] = range(len(masks.rows))
        self._on_host[num_rows:end] = masks.packed_RJW.numpy().flatten()[: end - num_rows]
        self._numbers[:end].copy_(self._sent[:end], non_blocking=True)

    def of_rows(self) -> torch.Tensor:
        """Return the masks of all rows [B, J, W]."""
        num_rows = self._shape[0]
        line_B, masks_RJW = self._numbers[:num_rows], self._numbers[num_rows:].view(self._shape)
        return torch.where(line_B[:, None, None] < 0, -1, masks_RJW[line_B.clamp(min=0)])
