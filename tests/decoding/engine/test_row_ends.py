"""Verdicts of rounds that were planned before the host knew how long their rows are."""

from types import SimpleNamespace

import pytest

from decoding import SamplingParams
from decoding.drafters.base import NoDrafter
from decoding.engine.rounds.commits import Commits
from decoding.sampling.rules import COUPLED
from decoding.sampling.verdicts import RowVerdict
from decoding.sequence import Sequence
from tests.decoding.tiny import check_counts

DRAFTED = [5, 6, 7, 8]


def _commit(sequence: Sequence, num_accepted: int, num_drafted: int = 4) -> None:
    commits = Commits(SimpleNamespace(eos_token_ids=frozenset()), NoDrafter(), COUPLED)
    commits.commit(0, sequence, RowVerdict(num_accepted, 9, num_drafted + 1, True, num_drafted, DRAFTED, []))


@pytest.mark.parametrize("num_remaining", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("num_accepted", [0, 1, 2, 4])
def test_a_draft_that_goes_beyond_a_rows_end_is_counted_up_to_it(num_accepted, num_remaining):
    """A corpus is checked by these counts (`pipeline/run/check.py`)."""
    sequence = Sequence.create([1], SamplingParams(max_tokens=num_remaining))
    sequence.rounds = []
    _commit(sequence, num_accepted)
    assert sequence.output_token_ids == [*DRAFTED[:num_accepted], 9][:num_remaining]
    assert sequence.num_draft_tokens == min(4, num_remaining - 1)
    (only,) = sequence.rounds
    assert [*DRAFTED[: only.num_accepted], *only.rejected_token_ids] == DRAFTED[: num_remaining - 1]
    check_counts(sequence)


def test_a_draft_that_ends_before_its_row_does_is_counted_as_it_was():
    sequence = Sequence.create([1], SamplingParams(max_tokens=4))
    _commit(sequence, 2, num_drafted=3)
    assert (sequence.output_token_ids, sequence.num_draft_tokens) == ([*DRAFTED[:2], 9], 3)


@pytest.mark.parametrize(("num_remaining", "rejected"), [(2, ()), (3, ()), (4, (7,)), (5, (7, 8)), (9, (7, 8))])
def test_what_was_rejected_of_a_draft_is_counted_up_to_a_rows_end(num_remaining, rejected):
    sequence = Sequence.create([1], SamplingParams(max_tokens=num_remaining))
    _commit(sequence, 2)
    assert sequence.rejected_token_ids == rejected
