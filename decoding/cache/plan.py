"""Plan: the slots and positions of a forward, and Packing: how its ragged rows lie end to end.

Shapes: B rows of a forward, T tokens of each (N in all, where rows are ragged), L visible positions.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch

from decoding.device import to_device


@dataclass(frozen=True)
class Plan:
    """The slots and positions that one forward reads and writes."""

    slots_B: torch.Tensor | None  # None: slots 0..B-1, read in place without a copy
    positions_BT: torch.Tensor  # of each row's tokens: the last ones that they see
    row_first: torch.Tensor  # [B + 1]: row b has the tokens from row_first[b] up to row_first[b + 1]
    slots_N: torch.Tensor  # of each token
    positions_N: torch.Tensor  # of each token
    written_N: torch.Tensor  # where its key and value are written: its position, or the spare one beyond the end
    num_visible: int  # L
    packing: "Packing | None"  # None: all rows have T tokens, and the model sees [B, T]


@dataclass(frozen=True)
class Packing:
    """The mapping between N tokens of ragged rows, laid end to end, and a B x T rectangle."""

    packed_N: torch.Tensor  # the index of each packed token in the flattened rectangle
    unpacked_BT: torch.Tensor  # the packed token at each place; behind the end of a row, its last one
    row_first: torch.Tensor  # [B + 1]: where each row's packed tokens begin, and the last one's end

    @classmethod
    def of(
        cls, lengths: Seq[int], device: torch.device, width: int | None = None, *, is_read_back: bool = True
    ) -> "Packing | None":
        """Return the packing of rows of these lengths in a rectangle (default width: the longest); None if equal.

        Unless `is_read_back`, nothing is asked for by its place in the rectangle: `unpacked_BT` has no columns.
        """
        if len(set(lengths)) == 1:
            return None
        width = width or max(lengths)
        assert 1 <= min(lengths) <= max(lengths) <= width, "each row has a token, and none more than the rectangle"
        row_first = list(accumulate(lengths, initial=0))
        packed = [row * width + index for row, length in enumerate(lengths) for index in range(length)]
        columns = range(width if is_read_back else 0)
        unpacked = [[min(first + index, end - 1) for index in columns] for first, end in pairwise(row_first)]
        return cls(*(to_device(values, device, torch.int64) for values in (packed, unpacked, row_first)))
