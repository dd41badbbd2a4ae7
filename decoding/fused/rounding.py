"""Sizes of recorded work. They are rounded up, so that few shapes occur and a recording serves many rounds."""


def rounded(number: int) -> int:
    """Round up to one of four sizes between a power of two and the next."""
    step = 1 << max(0, (number - 1).bit_length() - 3)
    return -(-number // step) * step


def power_of_two(number: int) -> int:
    """Round up to a power of two."""
    return 1 << (number - 1).bit_length()
