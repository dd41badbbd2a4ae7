"""TokenMasks: which tokens the grammars of some rows allow at the positions of a round.

Shapes: B rows of a round, R of them with a grammar, J positions, W words of 32 token ids, V vocabulary.
"""

from collections.abc import Collection
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import compress

import numpy as np
import torch

from decoding.device import to_device
from decoding.grammar.token_table import Mask
from decoding.sampling.cuts import NEVER
from decoding.sequence import Sequence


@dataclass(frozen=True)
class TokenMasks:
    """The masks of the rows that have a grammar."""

    rows: tuple[int, ...]
    packed_RJW: torch.Tensor  # int32, on the CPU: bit i of word w stands for token id 32 * w + i

    @classmethod
    def of(
        cls,
        sequences: Seq[Sequence],
        drafted: Seq[Seq[int]],
        first: int,
        num_positions: int,
        num_drafted: Seq[int] | None = None,
        among: Collection[int] | None = None,
    ) -> "TokenMasks":
        """Return the masks at `num_positions` positions, those from `first` drafted tokens on.

        They are those of all rows that have a grammar, or of those `among` these rows. `drafted` has the tokens of each
        row behind its committed ones. Behind the first position as many have a meaning as `num_drafted` says of a row
        (None: all). Everything is allowed at the others, and behind a token that ends the text or that the grammar does
        not allow.
        """
        rows = tuple(
            row
            for row, sequence in enumerate(sequences)
            if sequence.matcher is not None and (among is None or row in among)
        )
        masks: list[list[Mask | None]] = []
        for row in rows:
            matcher, committed, tokens = sequences[row].matcher, sequences[row].output_token_ids, drafted[row]
            assert matcher is not None, "these rows have one"
            last = first + (num_positions - 1 if num_drafted is None else num_drafted[row])
            own: list[Mask | None] = []
            for place in range(first, first + num_positions):
                # Behind a position without a meaning no other has one.
                is_known = place <= last and (not own or own[-1] is not None)
                own.append(matcher.mask(committed, tokens[:place]) if is_known else None)
            masks.append(own)
        has_masks = [any(mask is not None for mask in own) for own in masks]
        return cls(tuple(compress(rows, has_masks)), _stacked(list(compress(masks, has_masks))))

    def apply(self, logits_BJV: torch.Tensor) -> torch.Tensor:
        """Return a copy of the logits in which tokens that are not allowed have -inf; without masks, the logits."""
        if not self.rows:
            return logits_BJV
        num_rows, _, vocab_size = logits_BJV.shape
        allowed_RJV = self._unpacked(vocab_size, logits_BJV.device)
        if len(self.rows) == num_rows:
            return torch.where(allowed_RJV, logits_BJV, NEVER)
        rows_R = to_device(list(self.rows), logits_BJV.device)
        return logits_BJV.index_copy(0, rows_R, torch.where(allowed_RJV, logits_BJV[rows_R], NEVER))

    def _unpacked(self, vocab_size: int, device: torch.device) -> torch.Tensor:
        """Return the masks as bool [R, J, V] on a device, to which they travel packed."""
        if device.type == "cpu":
            bytes_RJX = self.packed_RJW.numpy().view(np.uint8)
            bits_RJV = np.unpackbits(bytes_RJX, axis=-1, count=vocab_size, bitorder="little")
            return torch.from_numpy(bits_RJV).view(torch.bool)
        return _unpacked(self.packed_RJW.to(device, non_blocking=True), vocab_size)


def with_masks(logits_BJV: torch.Tensor, packed_BJW: torch.Tensor) -> torch.Tensor:
    """Return a copy of the logits in which tokens that are not allowed have -inf. All is on one device."""
    return torch.where(_unpacked(packed_BJW, logits_BJV.shape[2]), logits_BJV, NEVER)


def _unpacked(packed_RJW: torch.Tensor, vocab_size: int) -> torch.Tensor:
    bytes_RJX1 = packed_RJW.view(torch.uint8)[..., None]
    bits_RJX8 = bytes_RJX1 >> torch.arange(8, dtype=torch.uint8, device=packed_RJW.device) & 1
    return bits_RJX8.flatten(-2)[..., :vocab_size].bool()


NO_MASKS = TokenMasks((), torch.zeros(0, 0, 1, dtype=torch.int32))


def _stacked(masks: Seq[Seq[Mask | None]]) -> torch.Tensor:
    """Return masks as one tensor; where there is none, every token is allowed."""
    num_words = next((len(mask) for own in masks for mask in own if mask is not None), 1)
    packed_RJW = np.full((len(masks), len(masks[0]) if masks else 0, num_words), -1, dtype=np.int32)
    for index, own in enumerate(masks):
        for place, mask in enumerate(own):
            if mask is not None:
                packed_RJW[index, place] = mask.view(np.int32)
    return torch.from_numpy(packed_RJW)
