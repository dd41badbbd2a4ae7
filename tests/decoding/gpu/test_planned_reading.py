"""What a round that the host planned leaves behind: what its draft has read, and memory that the next round has."""

import torch

from decoding import SamplingParams
from decoding.drafters.block_drafter import DFlashDrafter
from decoding.drafters.head_drafters import Eagle3Drafter
from decoding.drafters.model import ModelDrafter
from decoding.engine.rounds.overlapped.grammars import GrammarBuffers, RoundGrammars
from decoding.engine.rounds.overlapped.head_steps import BlockSteps, HeadSteps
from decoding.engine.rounds.overlapped.planned_rounds import _PlannedRound
from decoding.engine.rounds.overlapped.steps import DraftSteps, ModelSteps, RowsNow
from decoding.network.language_model import LanguageModel
from decoding.pace.draft_lengths import DraftPlan
from decoding.pace.schedule import FixedSchedule
from decoding.sampling.masks import TokenMasks
from decoding.sampling.rows import Rows, sampling_batch
from decoding.sampling.rules import COUPLED
from decoding.sampling.verdicts import SentVerdicts, Verdicts
from decoding.sequence import Sequence
from tests.decoding.heads.tiny_heads import block_config, head_config, random_head
from tests.decoding.tiny import build, llama_config

CPU = torch.device("cpu")


def read(steps: DraftSteps, rows: tuple[Sequence, ...], given: list[list[int]], corrected: list[int]) -> None:
    """Read and commit a round whose steps drafted three tokens 1 of each row, but of those with other ones, all right.

    Token 2 follows, but 3 in rows that were judged again.
    """
    asked = Rows(rows, sampling_batch(rows, frozenset(), CPU), (3,) * len(rows), COUPLED)
    drafted_BK, three_B = torch.tensor([own or [1] * 3 for own in given]), torch.full((len(rows),), 3)
    next_B = torch.tensor([3 if row in corrected else 2 for row in range(len(rows))])
    verdicts = Verdicts(three_B, next_B, three_B + 1, three_B > 0)
    sent = SentVerdicts(verdicts.columns(drafted_BK, three_B))
    plan, limits = DraftPlan.nothing(len(rows)), [0 if own else 3 for own in given]
    grammars = RoundGrammars(asked, (None,) * len(rows), GrammarBuffers(len(rows), 3, 40, CPU), corrected)
    of_host = rows, plan, sent, FixedSchedule(3), None, asked, [], False, 0.0
    for _, row, verdict in _PlannedRound(*of_host, limits, given, steps, [True] * len(rows), None, grammars).read(
        rows, None
    ):
        tokens = [*verdict.draft_token_ids, verdict.next_token]
        row.commit(tokens, num_draft_tokens=3, eos_token_ids=frozenset(), draft_token_ids=verdict.draft_token_ids)


def two_rows() -> tuple[Sequence, ...]:
    return tuple(Sequence.create(list(range(4, 4 + length)), SamplingParams()) for length in (6, 9))


def test_a_draft_model_has_read_no_token_that_the_host_gave():
    model = LanguageModel(build(llama_config(), seed=3), frozenset())
    steps, rows = ModelSteps(ModelDrafter(model, model.vocab_size, 2, 32)), two_rows()
    read(steps, rows, [[7, 8, 9], []], [])
    assert steps.slots.num_known == [6, 9 + 2]  # all before its draft; of its own draft all tokens but the last one


def test_the_last_pair_of_a_row_that_was_judged_again_has_the_token_of_the_second_judgement():
    steps, rows = HeadSteps(Eagle3Drafter(random_head(head_config())[0], 2, 64), 2, 3), two_rows()
    now = RowsNow(torch.tensor([6, 9]), torch.zeros(2, 2, dtype=torch.int64), torch.tensor([True, True]))
    steps.keep_features(now, torch.randn(2, 5, steps._head.hidden_size))
    steps.keep_tokens(now, torch.tensor([[1, 1, 1, 2, 0]] * 2))  # as the device has judged
    read(steps, rows, [[], []], [0])
    assert all(steps.level(rows, [3, 3])[0])
    last = [int(steps._tokens_SR[slot, (len(row) - 2) % steps._size]) for slot, row in enumerate(rows)]
    assert last == [row.token_ids[-1] for row in rows] == [3, 2]


def test_a_head_that_fills_in_blocks_drafts_for_rows_of_which_it_has_all_features_but_the_newest_tokens():
    steps, rows = BlockSteps(DFlashDrafter(random_head(block_config())[0], 2, 64)), two_rows()
    steps.slots.num_known = [6 - 1, 9 - 2]
    assert steps.level(rows, [3, 3])[0] == [True, False]
    read(steps, rows, [[7, 8, 9], []], [0])
    assert steps.level(rows, [3, 3])[0] == [True, True]
    assert steps.levels(rows, [True, True], [True, False], is_drafted=False) == [True, False]


def test_rounds_with_grammars_have_the_same_memory_and_no_mask_of_an_earlier_one():
    buffers = GrammarBuffers(4, 2, 40, CPU)
    large, small = (torch.randint(0, 9, (2, num_positions, 2), dtype=torch.int32) for num_positions in (3, 2))
    buffers.take(TokenMasks((1, 3), large), 4)
    expected = torch.full((4, 3, 2), -1, dtype=torch.int32)
    expected[[1, 3]] = large
    assert torch.equal(buffers.masks(4, 3), expected)
    buffers.take(TokenMasks((2,), small[:1]), 3)
    expected = torch.full((3, 2, 2), -1, dtype=torch.int32)
    expected[2] = small[0]
    assert torch.equal(buffers.masks(3, 2), expected)
    buffers.take(TokenMasks((), torch.zeros(0, 0, 1, dtype=torch.int32)), 2)
    assert torch.equal(buffers.masks(2, 1), torch.full((2, 1, 2), -1, dtype=torch.int32))
    kept = [buffers.keep(torch.randn(num_rows, num_positions, 40)) for num_rows, num_positions in ((4, 3), (1, 2))]
    assert kept[0].data_ptr() == kept[1].data_ptr()
    assert kept[0].untyped_storage().nbytes() == 4 * 3 * 40 * 4
