"""Verdicts of rounds that were planned before the host knew how long their rows are."""

import pytest

pytest.importorskip("triton")

from decoding import SamplingParams
from decoding.engine.overlapped_lane import within_limit
from decoding.sampling.judging import RowVerdict
from decoding.sequence import Sequence
from tests.decoding.tiny import check_counts

DRAFTED = [5, 6, 7, 8]


def verdict(num_accepted: int, num_drafted: int) -> RowVerdict:
    picked = [*DRAFTED[:num_accepted], 9]
    return RowVerdict(num_accepted, picked[-1], 5, True, num_drafted, DRAFTED, [])


@pytest.mark.parametrize("num_remaining", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("num_accepted", [0, 1, 2, 4])
def test_a_draft_that_goes_beyond_a_rows_end_is_counted_up_to_it(num_accepted, num_remaining):
    """A corpus is checked by these counts (`pipeline/run/check.py`)."""
    sequence = Sequence.create([1], SamplingParams(max_tokens=num_remaining))
    found = within_limit(verdict(num_accepted, 4), sequence.num_remaining_tokens)
    tokens = [*found.draft_token_ids[: found.num_accepted], found.next_token]
    sequence.commit(tokens, num_draft_tokens=found.num_drafted, eos_token_ids=frozenset())
    assert sequence.output_token_ids == [*DRAFTED[:num_accepted], 9][:num_remaining]
    assert sequence.num_draft_tokens == min(4, num_remaining - 1)
    check_counts(sequence)


def test_a_draft_that_ends_before_its_row_does_is_as_it_was():
    assert within_limit(verdict(2, 3), num_remaining=4) == verdict(2, 3)
