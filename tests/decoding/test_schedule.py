"""No row drafts more than it can keep."""

import pytest

from decoding import SamplingParams, Sequence
from decoding.schedule import fixed_lengths


@pytest.mark.parametrize(("num_left", "expected"), [(1, 0), (2, 1), (4, 3), (5, 4), (6, 4), (100, 4)])
def test_a_row_never_drafts_more_than_its_limit_lets_it_keep(num_left, expected):
    sequence = Sequence.create([1, 2], SamplingParams(max_tokens=num_left + 3))
    sequence.output_token_ids += [5, 6, 7]
    assert fixed_lengths([sequence], 4) == (expected,)


def test_every_row_gets_a_length_of_its_own():
    sequences = [Sequence.create([1], SamplingParams(max_tokens=n)) for n in (1, 3, 50)]
    assert fixed_lengths(sequences, 6) == (0, 2, 6)
