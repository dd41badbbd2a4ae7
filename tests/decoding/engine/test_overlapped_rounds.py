"""Verdicts of rounds that were planned before the host knew how long their rows are."""

import pytest

pytest.importorskip("triton")

from decoding import SamplingParams
from decoding.engine.overlapped.lane import commit_within_limit
from decoding.sequence import Sequence
from tests.decoding.tiny import check_counts

DRAFTED = [5, 6, 7, 8]
NO_END: frozenset[int] = frozenset()


@pytest.mark.parametrize("num_remaining", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("num_accepted", [0, 1, 2, 4])
def test_a_draft_that_goes_beyond_a_rows_end_is_counted_up_to_it(num_accepted, num_remaining):
    """A corpus is checked by these counts (`pipeline/run/check.py`)."""
    sequence = Sequence.create([1], SamplingParams(max_tokens=num_remaining))
    sequence.rounds = []
    commit_within_limit(sequence, DRAFTED, [*DRAFTED[:num_accepted], 9], NO_END)
    assert sequence.output_token_ids == [*DRAFTED[:num_accepted], 9][:num_remaining]
    assert sequence.num_draft_tokens == min(4, num_remaining - 1)
    (only,) = sequence.rounds
    assert [*DRAFTED[: only.num_accepted], *only.rejected_token_ids] == DRAFTED[: num_remaining - 1]
    check_counts(sequence)


def test_a_draft_that_ends_before_its_row_does_is_counted_as_it_was():
    sequence = Sequence.create([1], SamplingParams(max_tokens=4))
    commit_within_limit(sequence, DRAFTED[:3], [*DRAFTED[:2], 9], NO_END)
    assert (sequence.output_token_ids, sequence.num_draft_tokens) == ([*DRAFTED[:2], 9], 3)


@pytest.mark.parametrize(("num_remaining", "rejected"), [(2, ()), (3, ()), (4, (7,)), (5, (7, 8)), (9, (7, 8))])
def test_what_was_rejected_of_a_draft_is_counted_up_to_a_rows_end(num_remaining, rejected):
    sequence = Sequence.create([1], SamplingParams(max_tokens=num_remaining))
    commit_within_limit(sequence, DRAFTED, [*DRAFTED[:2], 9], NO_END)
    assert sequence.rejected_token_ids == rejected
