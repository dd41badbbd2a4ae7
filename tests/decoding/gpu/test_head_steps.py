"""What a round on the device leaves of a head's pairs is there when the next round has been started, and dropped."""

import pytest
import torch

from decoding import SamplingParams
from decoding.drafters.head_drafters import Eagle3Drafter
from decoding.engine.rounds.overlapped.inputs import rounded_width
from decoding.engine.rounds.overlapped.steps import HeadSteps, RowsNow
from decoding.sampling.verdicts import RowVerdict
from decoding.sequence import Sequence
from tests.decoding.heads.tiny_heads import head_config, random_head


@pytest.mark.parametrize("most_drafted", range(1, 10))
def test_a_round_that_is_dropped_leaves_the_pairs_of_the_one_before(most_drafted):
    drafter = Eagle3Drafter(random_head(head_config())[0], 3, 64)
    steps, width = HeadSteps(drafter, 3, most_drafted), rounded_width(most_drafted) + 1
    rows = [Sequence.create(list(range(length)), SamplingParams()) for length in (7, 20, 33)]
    lengths_B, is_active_B = torch.tensor([len(row) for row in rows]), torch.tensor([True, True, False])
    accepted_B = torch.tensor([most_drafted, 0, 0])
    features_BJH = torch.randn(3, width, drafter.head.hidden_size)
    tokens_BJ = torch.zeros(3, width, dtype=torch.int64)
    steps.keep(RowsNow(lengths_B, tokens_BJ, is_active_B), features_BJH, tokens_BJ)
    for slot, accepted in enumerate(accepted_B[:2].tolist()):
        steps.note(slot, slot, rows[slot], RowVerdict(accepted, 0, 0, True, most_drafted, [], []), most_drafted)
    steps.keep(RowsNow(lengths_B + accepted_B + 1, tokens_BJ, is_active_B), -features_BJH, tokens_BJ)
    for slot, accepted in enumerate(accepted_B[:2].tolist()):
        ((start, lines_NH),) = drafter._pieces(slot)
        assert start == len(rows[slot]) - 1
        assert torch.equal(lines_NH, features_BJH[slot, : accepted + 1])
    assert not steps._lines_SRH[2].any()
