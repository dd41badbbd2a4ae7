"""A head that fills in blocks drafts from the committed text and the target's features of it, and from nothing else."""

from dataclasses import replace

import pytest
import torch

from decoding import Engine, EngineOptions, SamplingParams
from decoding.drafters.base import NoDrafter
from decoding.drafters.head_drafters import DFlashDrafter
from decoding.pace.cost_table import CostTable
from decoding.pace.schedule import FixedSchedule
from tests.decoding.drafters.over_heads import PROMPTS, Watched, engine_over, features_of
from tests.decoding.heads.block_reference import ReferenceBlocks
from tests.decoding.heads.test_dflash_head import VARIANTS, settings_of
from tests.decoding.heads.tiny_heads import block_config, random_head, some_target_ids
from tests.decoding.tiny import VOCAB_SIZE, build, llama_config, loaded, random_prompts, schedule_at_random

SLIDING = {"use_sliding_window": True, "sliding_window": 6, "layer_types": ["full_attention", "sliding_attention"]}


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return loaded(build(llama_config(), seed=1), tmp_path_factory.mktemp("target"))


class WatchedDFlash(Watched, DFlashDrafter):
    """A DFlash drafter that is watched, and that ends drafts at a given chance."""

    min_survival = 0.0

    def propose(self, rows):
        return super().propose(replace(rows, min_survival=self.min_survival))


def watched(head, num_slots: int = 3) -> WatchedDFlash:
    drafter = WatchedDFlash(head, num_slots, 80)
    drafter.seen = []
    return drafter


def check_drafts(target, drafter, tensors, config) -> None:
    """Every draft is that of a textbook head which reads the text from its beginning."""
    reference = ReferenceBlocks(tensors, settings_of(config))
    assert len(drafter.seen) > 20
    for tokens, drafted, limit in drafter.seen:
        features_NX = features_of(target, tokens[:-1], drafter.head.layer_ids) if tokens[1:] else torch.zeros(0, 96)
        expected, chances = reference.draft(tokens, features_NX, limit)
        survival = torch.tensor(chances).cumprod(0)
        assert (survival - drafter.min_survival).abs().min() > 1e-6, "a tie"
        num_paying = 1 + int((survival[1:] >= drafter.min_survival).sum())
        assert drafted == expected[:num_paying], tokens


@pytest.mark.parametrize("layer", [{}, SLIDING], ids=["full", "sliding"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_each_draft_is_that_of_a_textbook_head_over_the_committed_text(target, variant, layer):
    config = block_config(draft_vocab_size=30, layer=layer, **VARIANTS[variant])
    head, tensors = random_head(config)
    drafter = watched(head)
    params = SamplingParams(max_tokens=12, temperature=0)
    sequences = engine_over(target, drafter, num_drafted=8).generate(PROMPTS, params)
    assert any(sequence.num_cached_tokens for sequence in sequences)  # a prefix was copied
    assert max(limit for _, _, limit in drafter.seen) == head.block_tokens
    check_drafts(target, drafter, tensors, config)


def test_a_draft_ends_where_the_head_says_that_the_next_token_does_not_pay(target):
    config = block_config(kind="dspark")
    head, tensors = random_head(config)
    drafter = watched(head)
    drafter.min_survival = 0.2
    engine_over(target, drafter, num_drafted=5).generate(PROMPTS, SamplingParams(max_tokens=20, temperature=0))
    lengths = [len(drafted) for _, drafted, limit in drafter.seen if limit == 5]
    assert set(lengths) >= {1, 2, 5}
    check_drafts(target, drafter, tensors, config)


@pytest.mark.parametrize("verification", ["coupled", "rejection"])
def test_the_target_reads_no_token_behind_the_end_of_a_draft(target, monkeypatch, verification):
    head, _ = random_head(block_config(kind="dspark"))
    drafter = watched(head)
    drafter.min_survival = 0.2
    score, read = target.score, []

    def watched_score(request):
        read.append((request.lengths, request.draft.num_draft_tokens_B.tolist(), request.token_ids_BJ.shape[1]))
        return score(request)

    monkeypatch.setattr(target, "score", watched_score)
    engine = engine_over(target, drafter, num_drafted=5, verification=verification)
    engine.generate(PROMPTS, SamplingParams(max_tokens=20, temperature=0.9, ignore_eos=True))
    assert all(lengths == [1 + n for n in drafted] for lengths, drafted, _ in read)
    assert {width for *_, width in read} > {2, 3}
    assert all(width == max(lengths) for lengths, _, width in read)


def test_rows_that_did_not_draft_for_long_draft_as_if_they_had(target, monkeypatch):
    config = block_config()
    head, tensors = random_head(config)
    drafter = watched(head, num_slots=2)
    engine = engine_over(target, drafter, num_slots=2)
    lengths, rounds = FixedSchedule.lengths, []

    def now_and_then(schedule, sequences):
        rounds.append(None)
        drafts = len(rounds) % 25 == 0
        return tuple(n if drafts and row else 0 for row, n in enumerate(lengths(schedule, sequences)))

    monkeypatch.setattr(FixedSchedule, "lengths", now_and_then)
    engine.generate(random_prompts([9, 4, 6, 7]), SamplingParams(max_tokens=60, temperature=0))
    assert len(drafter.seen) >= 2
    monkeypatch.undo()
    engine.generate(random_prompts([9, 4, 7]), SamplingParams(max_tokens=30, temperature=0))
    check_drafts(target, drafter, tensors, config)


@pytest.mark.parametrize("variant", ["dflash", "rnn"])
def test_a_row_that_does_not_draft_may_stand_between_those_that_draft_longest(target, monkeypatch, variant):
    """In the first step only some rows are gathered; the later ones go over the first slots, with a row between."""
    config = block_config(**VARIANTS[variant])
    head, tensors = random_head(config)
    drafter = watched(head, num_slots=12)
    wanted = [3, 0, 3, *[0] * 7, 1, 1]
    lengths = FixedSchedule.lengths
    monkeypatch.setattr(
        FixedSchedule, "lengths", lambda schedule, rows: tuple(map(min, lengths(schedule, rows), wanted))
    )
    params = SamplingParams(max_tokens=20, temperature=0)
    engine_over(target, drafter, num_slots=12).generate(random_prompts([6] * 12), params)
    check_drafts(target, drafter, tensors, config)


def test_rows_longer_than_the_heads_context_draft_up_to_its_end(target):
    config = block_config(layer={"max_position_embeddings": 16})
    head, tensors = random_head(config)
    drafter = watched(head)
    engine, params = engine_over(target, drafter), SamplingParams(max_tokens=30, temperature=0)
    prompts = [*PROMPTS, *random_prompts([40, 22]), random_prompts([40])[0]]
    for _ in range(2):  # the second time, prefixes of long rows are copied
        found = engine.generate(prompts, params)
        plain = engine_over(target.share(), NoDrafter()).generate(prompts, params)
        assert [row.output_token_ids for row in found] == [row.output_token_ids for row in plain]
    assert max(len(tokens) + len(drafted) for tokens, drafted, _ in drafter.seen) == 16
    check_drafts(target, drafter, tensors, config)


@pytest.mark.parametrize("num_slots", [1, 3])
@torch.no_grad()
def test_a_head_that_breaks_at_a_token_changes_no_text_and_spoils_no_later_row(target, num_slots):
    config = block_config(draft_vocab_size=30)
    head, tensors = random_head(config)
    drafter = watched(head, num_slots)
    engine, params = engine_over(target, drafter, num_slots=num_slots), SamplingParams(max_tokens=12, temperature=0)
    ids_D = some_target_ids(config)
    poison = next(token for token in range(VOCAB_SIZE) if token not in ids_D and token != config.mask_token_id)
    head.network.embed_tokens.weight[poison] = float("nan")
    # A slot serves sound rows after broken ones.
    prompts = [[6, 4, poison], [6, 4, 9, 8, poison], [2, 7, 1], [7, poison]]
    found = engine.generate(prompts, params)
    plain = engine_over(target.share(), NoDrafter(), num_slots=1).generate(prompts, params)
    assert [row.output_token_ids for row in found] == [row.output_token_ids for row in plain]
    assert not sum(found[0].accepted_per_position)
    drafter.seen.clear()
    rows = engine.generate([[9, 9], [3, 4, 4, 1], [8, 3], [8, 1]], params)
    assert not any(poison in row.token_ids for row in rows)
    assert all(row.num_draft_tokens for row in rows)
    check_drafts(target, drafter, tensors, config)


@pytest.mark.parametrize("verification", ["coupled", "rejection"])
def test_two_lanes_share_a_head(target, verification):
    config = block_config(draft_vocab_size=30, kind="dspark")
    head, tensors = random_head(config)
    drafters = [watched(head, num_slots=2), watched(head.share(), num_slots=2)]
    settings = EngineOptions(num_slots=4, num_speculative_tokens=3, max_model_len=80, verification=verification)
    engine = Engine([(target, drafters[0]), (target.share(), drafters[1])], settings, 80)
    params = SamplingParams(max_tokens=15, temperature=0)
    found = engine.generate(PROMPTS, params)
    plain = engine_over(target.share(), NoDrafter(), num_slots=1).generate(PROMPTS, params)
    assert [row.output_token_ids for row in found] == [row.output_token_ids for row in plain]
    for drafter in drafters:
        check_drafts(target, drafter, tensors, config)


def test_a_round_tells_the_drafter_from_which_chance_on_a_token_pays(target):
    head, _ = random_head(block_config(kind="dspark"))
    seen = []

    class Told(DFlashDrafter):
        def propose(self, rows):
            if any(rows.num_draft_tokens):
                seen.append((rows.min_survival, rows.take([0]).min_survival, rows.limited([True]).min_survival))
            return super().propose(rows)

    costs = CostTable(target=((1, 1.0), (64, 4.0)), draft=((1, 0.1), (4, 0.1)), block_tokens=5)
    settings = EngineOptions(num_slots=1, num_speculative_tokens=4, max_model_len=80)
    engine = Engine([(target, Told(head, 1, 80))], settings, 80, costs)
    engine.generate(random_prompts([6]), SamplingParams(max_tokens=10, temperature=0))
    assert seen
    assert all(0 < each < 1 and set(told) == {each} for each, *told in seen)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_a_row_whose_features_were_not_handed_out_for_a_while_drafts_no_more(target, seed, monkeypatch):
    config = block_config()
    head, tensors = random_head(config)
    drafter = watched(head)
    schedule_at_random(monkeypatch, seed)
    params = SamplingParams(max_tokens=14, temperature=0)
    found = engine_over(target, drafter).generate(PROMPTS * 20, params)
    monkeypatch.undo()
    assert 0 < sum(row.num_draft_tokens > 0 for row in found) < len(found)
    plain = engine_over(target.share(), NoDrafter()).generate(PROMPTS * 20, params)
    assert [row.output_token_ids for row in found] == [row.output_token_ids for row in plain]
    check_drafts(target, drafter, tensors, config)


def test_nothing_is_copied_from_a_slot_that_was_cleared(target):
    head, _ = random_head(block_config())
    drafter = watched(head)
    target.allocate(3, 80)
    target.hand_out(drafter.tap)
    drafter.begin(0, None, 0)
    target.prefill([0], [[1, 2, 3, 4, 5]])
    assert drafter.num_copyable(0, 4) == 4
    drafter.reset(0)
    assert drafter.num_copyable(0, 4) == 0
    drafter.begin(1, 0, 4)
    assert drafter.num_copyable(1, 4) == 0
    target.hand_out(None)
