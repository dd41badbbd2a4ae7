"""An EAGLE-3 head drafts from the committed text and the target's features of it, and from nothing else."""

import pytest
import torch

from decoding import Engine, EngineOptions, SamplingParams
from decoding.drafters.base import NoDrafter
from decoding.drafters.head_drafters import Eagle3Drafter
from decoding.pace.schedule import FixedSchedule
from tests.decoding.drafters.over_heads import PROMPTS, Watched, engine_over, features_of
from tests.decoding.heads.reference import ReferenceHead
from tests.decoding.heads.tiny_heads import VARIANTS, head_config, random_head, some_target_ids
from tests.decoding.tiny import VOCAB_SIZE, build, llama_config, loaded, random_prompts, schedule_at_random


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return loaded(build(llama_config(), seed=1), tmp_path_factory.mktemp("target"))


class WatchedEagle3(Watched, Eagle3Drafter):
    """An EAGLE-3 drafter that is watched."""


def watched(head, num_slots: int = 3) -> WatchedEagle3:
    drafter = WatchedEagle3(head, num_slots, 80)
    drafter.seen = []
    return drafter


def check_drafts(target, drafter, tensors, **settings) -> None:
    """Every draft is that of a textbook head which reads the text from its beginning."""
    reference = ReferenceHead(tensors, {"rms_norm_eps": 1e-6, "num_features": 3, "head_dim": 8, **settings})
    assert len(drafter.seen) > 20
    for tokens, drafted, _ in drafter.seen:
        features_NX = features_of(target, tokens[:-1], drafter.head.layer_ids)
        assert drafted == reference.draft(tokens, features_NX, len(drafted)), tokens


@pytest.mark.parametrize("variant", VARIANTS)
def test_each_draft_is_that_of_a_textbook_head_over_the_committed_text(target, variant):
    head, tensors = random_head(head_config(draft_vocab_size=30, **VARIANTS[variant]))
    drafter = watched(head)
    sequences = engine_over(target, drafter).generate(PROMPTS, SamplingParams(max_tokens=12, temperature=0))
    assert any(sequence.num_cached_tokens for sequence in sequences)  # a prefix was copied
    check_drafts(target, drafter, tensors, **VARIANTS[variant])


def test_rows_that_did_not_draft_for_long_draft_as_if_they_had(target, monkeypatch):
    head, tensors = random_head(head_config())
    drafter = watched(head, num_slots=2)
    engine = engine_over(target, drafter, num_slots=2)
    lengths, rounds = FixedSchedule.lengths, []

    def now_and_then(schedule, sequences):
        rounds.append(None)
        drafts = len(rounds) % 25 == 0
        return tuple(n if drafts and row else 0 for row, n in enumerate(lengths(schedule, sequences)))

    monkeypatch.setattr(FixedSchedule, "lengths", now_and_then)
    engine.generate(random_prompts([9, 4]), SamplingParams(max_tokens=60, temperature=0))
    engine.generate(random_prompts([9, 4, 6, 7]), SamplingParams(max_tokens=60, temperature=0))
    seen = drafter.seen
    monkeypatch.undo()
    engine.generate(random_prompts([9, 4, 7]), SamplingParams(max_tokens=30, temperature=0))
    assert len(seen) >= 2
    check_drafts(target, drafter, tensors)


def test_a_row_that_does_not_draft_may_stand_between_those_that_draft_longest(target, monkeypatch):
    """In the first step only some rows are gathered; the later ones go over the first slots, with a row between."""
    head, tensors = random_head(head_config())
    drafter = watched(head, num_slots=12)
    wanted = [3, 0, 3, *[0] * 7, 1, 1]
    lengths = FixedSchedule.lengths
    monkeypatch.setattr(
        FixedSchedule, "lengths", lambda schedule, rows: tuple(map(min, lengths(schedule, rows), wanted))
    )
    params = SamplingParams(max_tokens=20, temperature=0)
    engine_over(target, drafter, num_slots=12).generate(random_prompts([6] * 12), params)
    monkeypatch.undo()
    engine_over(target, drafter, num_slots=12).generate(random_prompts([6] * 3), params)
    check_drafts(target, drafter, tensors)


def test_a_row_that_began_with_one_token_drafts_as_any_other_after_rounds_without_a_draft(target, monkeypatch):
    head, tensors = random_head(head_config())
    drafter = watched(head, num_slots=3)
    lengths, most = FixedSchedule.lengths, iter([3, 3, 0, 0, 0, 0, 0, 0])  # of the others, asked twice a round

    def first_row_waits(schedule, rows):
        found, limit = lengths(schedule, rows), next(most, None)
        return found if limit is None else (0, *[min(limit, each) for each in found[1:]])

    monkeypatch.setattr(FixedSchedule, "lengths", first_row_waits)
    prompts = [[5], *random_prompts([7, 4])]
    engine_over(target, drafter, num_slots=3).generate(prompts, SamplingParams(max_tokens=30, temperature=0))
    check_drafts(target, drafter, tensors)


@pytest.mark.parametrize("budget", [5, pytest.param(None, marks=pytest.mark.slow)])
def test_rows_longer_than_the_heads_context_draft_up_to_its_end_and_hold_no_features_behind_it(target, budget):
    head, tensors = random_head(head_config(layer={"max_position_embeddings": 16}))
    drafter = watched(head)
    engine = engine_over(target, drafter, max_prefill_tokens=budget)
    params = SamplingParams(max_tokens=30, temperature=0)
    prompts = [*PROMPTS, *random_prompts([40, 22]), random_prompts([40])[0]]
    for _ in range(2):  # the second time, prefixes of long rows are copied
        found = engine.generate(prompts, params)
        plain = engine_over(target.share(), NoDrafter()).generate(prompts, params)
        assert [row.output_token_ids for row in found] == [row.output_token_ids for row in plain]
    assert found[-1].num_cached_tokens == 38, "what a head does not read need not be read again"
    assert max(len(tokens) + len(drafted) for tokens, drafted, _ in drafter.seen) == 16
    assert all(piece.start < 16 for pieces in drafter._held.values() for piece in pieces)
    check_drafts(target, drafter, tensors)


@pytest.mark.parametrize("num_slots", [1, 3])
@torch.no_grad()
def test_a_head_that_breaks_at_a_token_changes_no_text_and_spoils_no_later_row(target, num_slots):
    config = head_config(draft_vocab_size=30)
    head, tensors = random_head(config)
    drafter = watched(head, num_slots)
    engine, params = engine_over(target, drafter, num_slots=num_slots), SamplingParams(max_tokens=12, temperature=0)
    ids_D = some_target_ids(config)
    poison = next(token for token in range(VOCAB_SIZE) if token not in ids_D)  # it is never drafted
    head.network.embed_tokens.weight[poison] = float("nan")
    prompts = [
        [3, poison, 4],
        [3, poison, 4, 9, 8],
        [2, 7, 1],
        [7, poison],
    ]  # a slot serves sound rows after broken ones
    found = engine.generate(prompts, params)
    plain = engine_over(target.share(), NoDrafter(), num_slots=1).generate(prompts, params)
    assert [row.output_token_ids for row in found] == [row.output_token_ids for row in plain]
    assert not sum(found[0].accepted_per_position)
    drafter.seen.clear()
    rows = engine.generate([[9, 9], [3, 4, 4, 1], [8, 3], [8, 1]], params)
    assert not any(poison in row.token_ids for row in rows)
    assert all(row.num_draft_tokens for row in rows)
    check_drafts(target, drafter, tensors)


@pytest.mark.parametrize("verification", ["coupled", "rejection"])
def test_two_lanes_share_a_head(target, verification):
    head, tensors = random_head(head_config(draft_vocab_size=30))
    drafters = [watched(head, num_slots=2), watched(head.share(), num_slots=2)]
    settings = EngineOptions(num_slots=4, num_speculative_tokens=3, max_model_len=80, verification=verification)
    engine = Engine([(target, drafters[0]), (target.share(), drafters[1])], settings, 80)
    params = SamplingParams(max_tokens=15, temperature=0)
    found = engine.generate(PROMPTS, params)
    plain = engine_over(target.share(), NoDrafter(), num_slots=1).generate(PROMPTS, params)
    assert [row.output_token_ids for row in found] == [row.output_token_ids for row in plain]
    for drafter in drafters:
        check_drafts(target, drafter, tensors)


@pytest.mark.parametrize("num_slots", [1, 2, 4])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_text_is_that_of_the_target_alone(target, num_slots, temperature):
    head, _ = random_head(head_config(draft_vocab_size=30))
    params = SamplingParams(max_tokens=15, temperature=temperature)
    found = engine_over(target, Eagle3Drafter(head, num_slots, 80), num_slots=num_slots).generate(PROMPTS, params)
    plain = engine_over(target, NoDrafter(), num_slots=1).generate(PROMPTS, params)
    assert [row.output_token_ids for row in found] == [row.output_token_ids for row in plain]
    assert sum(row.num_draft_tokens for row in found) > 100


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_a_row_whose_features_were_not_handed_out_for_a_while_drafts_no_more(target, seed, monkeypatch):
    head, tensors = random_head(head_config())
    drafter = watched(head)
    schedule_at_random(monkeypatch, seed)
    params = SamplingParams(max_tokens=14, temperature=0)
    found = engine_over(target, drafter).generate(PROMPTS * 20, params)
    monkeypatch.undo()
    assert 0 < sum(row.num_draft_tokens > 0 for row in found) < len(found)
    plain = engine_over(target.share(), NoDrafter()).generate(PROMPTS * 20, params)
    assert [row.output_token_ids for row in found] == [row.output_token_ids for row in plain]
    check_drafts(target, drafter, tensors)
