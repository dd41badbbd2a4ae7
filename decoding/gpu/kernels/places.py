"""Places of a row's positions in memory: in its slot, or in the pages that a table [S, C] names for each slot.

Shapes: S slots, C pages of the longest row.
"""

import triton
import triton.language as tl


@triton.jit
def place_of(pages_SC, slot, position, slot_stride, position_stride, table_stride, PAGE: tl.constexpr):
    """Return how far behind the first number a position lies, PAGE of which are in a page (0: all are in the slot)."""
    block, inside = slot, position.to(tl.int64)
    if PAGE > 0:
        block, inside = tl.load(pages_SC + slot * table_stride + position // PAGE).to(tl.int64), inside % PAGE
    return block * slot_stride + inside * position_stride
