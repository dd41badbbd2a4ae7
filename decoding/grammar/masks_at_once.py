"""Masks at once: where many sequences stand in their grammars, and which tokens may come next, as one array.

Shapes: R sequences, J positions, W words of 32 token ids.
"""

from collections.abc import Sequence as Seq
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from decoding.grammar.matcher import Matcher


class Place(NamedTuple):
    """Place of a sequence in its grammar: behind committed output tokens, and then behind each drafted one."""

    matcher: Matcher
    committed: Seq[int]
    drafted: Seq[int]


def masks_at_once(places: Seq[Place], num_positions: int) -> npt.NDArray[np.int32] | None:
    """Return the masks [R, J, W] behind the committed tokens and behind the drafted ones, at most J - 1 of a sequence.

    They are those that `Matcher.mask` returns; everything is allowed where that is None. Bit i of word w stands for
    token id 32 * w + i. There are none (None) if llguidance meets an error, or if nothing may follow somewhere:
    `Matcher.mask` knows what to do there, and why nothing follows.
    """
    packed_RJW = np.full((len(places), num_positions, places[0].matcher.num_tokenizer_words), -1, dtype=np.int32)
    address, size = packed_RJW.ctypes.data, packed_RJW[0, 0].nbytes
    for number, place in enumerate(places):
        first = address + number * num_positions * size
        if not place.matcher.write_masks(
            place.committed, place.drafted, range(first, first + num_positions * size, size)
        ):
            return None
    return packed_RJW
