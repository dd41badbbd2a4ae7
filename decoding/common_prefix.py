"""The beginning that two lists of tokens share."""

from collections.abc import Sequence as Seq
from typing import Any

_FIRST_STEP = 16  # tokens compared at first; each further comparison is twice as long


def common_prefix(first: Seq[Any], second: Seq[Any]) -> int:
    """Return how many first tokens two lists (or two tuples) share, or how many first characters two texts.

    Whole stretches are compared at once, in C: 32 slots of 1000 equal tokens take well under a millisecond, and
    prompts that differ early take next to nothing.
    """
    most = min(len(first), len(second))
    low, step = 0, _FIRST_STEP
    while low < most:
        high = min(low + step, most)
        if first[low:high] != second[low:high]:
            break
        low, step = high, 2 * step
    else:
        return most
    while high - low > 1:  # they are equal before low and differ before high
        middle = (low + high) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle
    return low
