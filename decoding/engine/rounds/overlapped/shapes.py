"""Sizes of recorded rounds, rounded up."""

from decoding.fused.rounding import power_of_two
from decoding.gpu.attention import CHUNK

_LEAST_REACH = 4 * CHUNK  # positions


def rounded_width(num_drafted: int) -> int:
    """Round the drafted tokens that are judged up: 0, 1, 2, 4, 8, ..."""
    return num_drafted if num_drafted <= 1 else power_of_two(num_drafted)


def reach_of(num_visible: int) -> int:
    """Round the positions that attention may read up. Chunks that no row has cost nothing."""
    return max(_LEAST_REACH, power_of_two(-(-num_visible // CHUNK)) * CHUNK)
