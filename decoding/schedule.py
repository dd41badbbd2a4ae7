"""How many draft tokens each row gets in a round."""

from collections.abc import Sequence as Seq

from decoding.sequence import Sequence


def fixed_lengths(sequences: Seq[Sequence], num_speculative_tokens: int) -> tuple[int, ...]:
    """The same length for every row, but never more than can be kept: a round adds one token to what it accepts."""
    return tuple(min(num_speculative_tokens, sequence.num_remaining_tokens - 1) for sequence in sequences)
