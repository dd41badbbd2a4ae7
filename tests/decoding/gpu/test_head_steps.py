"""What a round on the device leaves of a head's pairs is there when later rounds have been started, and dropped."""

import pytest
import torch

from decoding import SamplingParams
from decoding.drafters.head_drafters import Eagle3Drafter
from decoding.engine.rounds.overlapped.head_steps import HeadSteps
from decoding.engine.rounds.overlapped.inputs import rounded_width
from decoding.engine.rounds.overlapped.steps import RowsNow
from decoding.sampling.verdicts import RowVerdict
from decoding.sequence import Sequence
from tests.decoding.heads.tiny_heads import head_config, random_head


def keep(steps: HeadSteps, rows: RowsNow, features_BJH: torch.Tensor, written_BJ: torch.Tensor) -> None:
    steps.keep_features(rows, features_BJH)
    steps.keep_tokens(rows, written_BJ)


@pytest.mark.parametrize("most_drafted", range(1, 10))
def test_a_round_that_is_dropped_leaves_the_pairs_of_the_one_before(most_drafted):
    drafter = Eagle3Drafter(random_head(head_config())[0], 3, 64)
    steps, width = HeadSteps(drafter, 3, most_drafted), rounded_width(most_drafted) + 1
    rows = [Sequence.create(list(range(length)), SamplingParams()) for length in (7, 20, 33)]
    lengths_B, is_active_B = torch.tensor([len(row) for row in rows]), torch.tensor([True, True, False])
    accepted_B = torch.tensor([most_drafted, 0, 0])
    features_BJH = torch.randn(3, width, drafter.head.hidden_size)
    tokens_BJ = torch.zeros(3, width, dtype=torch.int64)
    keep(steps, RowsNow(lengths_B, tokens_BJ, is_active_B), features_BJH, tokens_BJ)
    for slot, accepted in enumerate(accepted_B[:2].tolist()):
        steps.note(slot, slot, rows[slot], RowVerdict(accepted, 0, 0, True, most_drafted, [], []), most_drafted)
    keep(steps, RowsNow(lengths_B + accepted_B + 1, tokens_BJ, is_active_B), -features_BJH, tokens_BJ)
    for slot, accepted in enumerate(accepted_B[:2].tolist()):
        ((start, lines_NH),) = drafter.take_left(slot)
        assert start == len(rows[slot]) - 1
        assert torch.equal(lines_NH, features_BJH[slot, : accepted + 1])
    assert not steps._lines_SRH[2].any()


@pytest.mark.parametrize("moves_early", [True, False])
def test_a_row_that_leaves_its_slot_keeps_its_features_when_another_row_runs_there(moves_early):
    """Both while its round is under way, and once that has been read: the row may have finished then."""
    drafter = Eagle3Drafter(random_head(head_config())[0], 2, 64)
    steps, row = HeadSteps(drafter, 2, 1), Sequence.create(list(range(9)), SamplingParams())
    features_BJH, tokens_BJ = torch.randn(1, 2, drafter.head.hidden_size), torch.zeros(1, 2, dtype=torch.int64)
    verdict = RowVerdict(1, 0, 0, True, 1, [], [])
    keep(steps, RowsNow(torch.tensor([len(row)]), tokens_BJ, torch.tensor([True])), features_BJH, tokens_BJ)
    if not moves_early:
        steps.note(0, 0, row, verdict, 1)
    drafter.swap(0, 1)
    if moves_early:
        steps.note(1, 0, row, verdict, 1)
    keep(steps, RowsNow(torch.tensor([len(row)]), tokens_BJ, torch.tensor([True])), -features_BJH, tokens_BJ)
    ((start, lines_NH),) = drafter.take_left(1)
    assert start == len(row) - 1
    assert torch.equal(lines_NH, features_BJH[0])
    assert not drafter.take_left(0)
