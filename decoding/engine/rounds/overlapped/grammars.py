"""The grammars of a round: masks that the host computes while the target reads, and the check of picks without them.

Shapes: B rows, J positions, W words of 32 token ids, V vocabulary.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import torch

from decoding.engine.rounds.overlapped.inputs import rounded_width
from decoding.sampling.judging import check
from decoding.sampling.masks import TokenMasks
from decoding.sampling.rows import Rows
from decoding.sampling.verdicts import RowVerdict


class GrammarBuffers:
    """Logits that wait for masks, and these, in the same memory for rounds of all sizes: one at a time is under way."""

    def __init__(self, num_slots: int, most_drafted: int, vocab_size: int, device: torch.device) -> None:
        """Make room for rounds of all slots in which each row drafts up to `most_drafted` tokens."""
        self._num_lines, self._num_words = num_slots * (1 + rounded_width(most_drafted)), -(-vocab_size // 32)
        self._logits_MV: torch.Tensor | None = None
        # Before the masks stands where each row's are: -1 if all is allowed to it.
        self._numbers = torch.zeros(num_slots + self._num_lines * self._num_words, dtype=torch.int32, device=device)
        # The next round begins when this one has been read, so what is on its way is not overwritten.
        self._sent = torch.zeros(self._numbers.shape, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._on_host = self._sent.numpy()

    def keep(self, logits_BJV: torch.Tensor) -> torch.Tensor:
        """Copy logits here, and return them: as the output of a recording they would be kept for each size."""
        lines_MV = logits_BJV.flatten(0, 1)
        if self._logits_MV is None:
            self._logits_MV = lines_MV.new_empty(self._num_lines, lines_MV.shape[1])
        return self._logits_MV[: len(lines_MV)].copy_(lines_MV).view_as(logits_BJV)

    def take(self, masks: TokenMasks, num_rows: int) -> None:
        """Copy the masks of a round of `num_rows` rows to the device, in one copy."""
        end = num_rows + masks.packed_RJW.numel() * bool(masks.rows)
        self._on_host[:num_rows] = -1
        self._on_host[list(masks.rows)] = range(len(masks.rows))
        self._on_host[num_rows:end] = masks.packed_RJW.numpy().flatten()[: end - num_rows]
        self._numbers[:end].copy_(self._sent[:end], non_blocking=True)

    def masks(self, num_rows: int, num_positions: int) -> torch.Tensor:
        """Return the masks of all rows of a round [B, J, W]."""
        line_B, end = self._numbers[:num_rows], num_rows * (1 + num_positions * self._num_words)
        masks_RJW = self._numbers[num_rows:end].view(num_rows, num_positions, self._num_words)
        return torch.where(line_B[:, None, None] < 0, -1, masks_RJW[line_B.clamp(min=0)])


@dataclass
class RoundGrammars:
    """The rows of a round, of which some have grammars."""

    rows: Rows
    num_logprobs: tuple[int | None, ...]  # as in `ScoreRequest`
    buffers: GrammarBuffers
    logits_BJV: torch.Tensor = field(init=False)  # of the round once it has begun, in the buffers
    corrected: list[int] = field(default_factory=list)  # rows whose picks were forbidden, and that were judged again

    def masks(self, drafted: Seq[Seq[int]], num_positions: int) -> TokenMasks:
        """Return the masks along these drafts of the rows whose masks come before their picks."""
        counts = list(map(len, drafted))
        return TokenMasks.of(self.rows.sequences, drafted, 0, num_positions, counts, self.rows.masked_first)

    def check(self, verdicts: list[RowVerdict]) -> None:
        """Judge those rows again that were judged without masks and got tokens which their grammars forbid."""
        self.corrected = check(self.rows, self.num_logprobs, 0.0, self.logits_BJV, verdicts)
