"""Sizes of recorded rounds. They are rounded up, so that few shapes occur and a recording serves many rounds."""

from decoding.gpu.attention import CHUNK

_LEAST_REACH = 4 * CHUNK  # positions


def rounded(number: int) -> int:
    """Round up to one of four sizes between a power of two and the next."""
    step = 1 << max(0, (number - 1).bit_length() - 3)
    return -(-number // step) * step


def rounded_width(num_drafted: int) -> int:
    """Round the drafted tokens that are judged up: 0, 1, 2, 4, 8, ..."""
    return num_drafted if num_drafted <= 1 else power_of_two(num_drafted)


def reach_of(num_visible: int) -> int:
    """Round the positions that attention may read up. Chunks that no row has cost nothing."""
    return max(_LEAST_REACH, power_of_two(-(-num_visible // CHUNK)) * CHUNK)


def power_of_two(number: int) -> int:
    """Round up to a power of two."""
    return 1 << (number - 1).bit_length()
