"""A head drafts from the committed text and the target's features of it, and from nothing else.

So each draft is that of a textbook head which reads the text from its beginning.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from decoding import Engine, EngineOptions, SamplingParams, ScoredText, Sequence
from decoding.drafters.base import NoDrafter
from decoding.drafters.block_drafter import DFlashDrafter
from decoding.drafters.head_drafters import Eagle3Drafter, PEagleDrafter
from decoding.heads.format.head_config import HeadConfig
from decoding.pace.cost_table import CostTable
from decoding.pace.schedule import FixedSchedule
from tests.decoding.drafters.over_heads import PROMPTS, Watched, engine_over, features_of
from tests.decoding.heads.block_reference import ReferenceBlocks
from tests.decoding.heads.reference import ReferenceHead
from tests.decoding.heads.test_dflash_head import VARIANTS as BLOCK_VARIANTS
from tests.decoding.heads.test_dflash_head import settings_of
from tests.decoding.heads.tiny_heads import (
    VARIANTS,
    block_config,
    head_config,
    mask_config,
    random_head,
    some_target_ids,
)
from tests.decoding.tiny import (
    VOCAB_SIZE,
    build,
    llama_config,
    loaded,
    outputs,
    random_prompts,
    schedule_at_random,
)

SLIDING = {"use_sliding_window": True, "sliding_window": 6, "layer_types": ["full_attention", "sliding_attention"]}


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return loaded(build(llama_config(), seed=1), tmp_path_factory.mktemp("target"))


class WatchedEagle3(Watched, Eagle3Drafter):
    """An EAGLE-3 drafter that is watched."""

    def expected(self, tensors, config, flags, tokens, features_NX, limit) -> list[int]:
        known = {"rms_norm_eps": 1e-6, "num_features": 3, "mask_token_id": config.mask_token_id}
        reference = ReferenceHead(tensors, {**known, "head_dim": 8, "num_hidden_layers": config.num_layers, **flags})
        return reference.draft(tokens, features_NX, limit)


class WatchedPEagle(WatchedEagle3, PEagleDrafter):
    """A P-EAGLE drafter that is watched."""


class WatchedDFlash(Watched, DFlashDrafter):
    """A DFlash drafter that is watched, and that ends drafts at a given chance."""

    min_survival = 0.0

    def propose(self, rows):
        return super().propose(replace(rows, min_survival=self.min_survival))

    def expected(self, tensors, config, flags, tokens, features_NX, limit) -> list[int]:
        drafted, chances = ReferenceBlocks(tensors, settings_of(config)).draft(tokens, features_NX, limit)
        survival = torch.tensor(chances).cumprod(0)
        assert (survival - self.min_survival).abs().min() > 1e-6, "a tie"
        return drafted[: 1 + int((survival[1:] >= self.min_survival).sum())]


@dataclass
class Kind:
    """A kind of heads."""

    config: Callable[..., HeadConfig]
    drafter: type
    variants: dict[str, dict[str, Any]]


KINDS = {
    "eagle3": Kind(head_config, WatchedEagle3, VARIANTS),
    "peagle": Kind(mask_config, WatchedPEagle, {name: VARIANTS[name] for name in ("original", "eagle 3.1")}),
    "dflash": Kind(block_config, WatchedDFlash, BLOCK_VARIANTS),
}


class Case:
    """A random head of a kind, and the drafter with it."""

    def __init__(self, which: str, num_slots: int = 3, **flags: Any) -> None:
        self.kind, self.flags = KINDS[which], flags
        self.config = self.kind.config(**flags)
        self.head, self.tensors = random_head(self.config)
        self.drafter = self.watched(num_slots)

    def watched(self, num_slots: int):
        drafter = self.kind.drafter(self.head.share(), num_slots, 80)
        drafter.seen = []
        return drafter

    def check(self, target, drafter=None) -> None:
        """Compare every draft with that of a textbook head."""
        drafter = drafter or self.drafter
        assert len(drafter.seen) > 20
        for tokens, drafted, limit in drafter.seen:
            features_NX = features_of(target, tokens[:-1], drafter.head.layer_ids) if tokens[1:] else torch.zeros(0, 96)
            limit = limit if self.kind.drafter is WatchedDFlash else len(drafted)
            flags = {
                name: value for name, value in self.flags.items() if name in ("norm_before_residual", "norm_output")
            }
            assert drafted == drafter.expected(self.tensors, self.config, flags, tokens, features_NX, limit), tokens


def text_of_the_target_alone(target, prompts, params) -> list[list[int]]:
    return outputs(engine_over(target.share(), NoDrafter(), num_slots=1).generate(prompts, params))


@pytest.mark.parametrize(
    ("kind", "variant", "layer"),
    [
        *((kind, variant, {}) for kind in ("eagle3", "peagle") for variant in KINDS[kind].variants),
        *(("dflash", variant, layer) for variant in BLOCK_VARIANTS for layer in ({}, SLIDING)),
    ],
)
def test_each_draft_is_that_of_a_textbook_head_over_the_committed_text(target, kind, variant, layer):
    case = Case(kind, draft_vocab_size=30, layer=layer, **KINDS[kind].variants[variant])
    engine = engine_over(target, case.drafter, num_drafted=3 if kind == "eagle3" else 8)
    sequences = engine.generate(PROMPTS, SamplingParams(max_tokens=12, temperature=0))
    assert any(sequence.num_cached_tokens for sequence in sequences)  # a prefix was copied
    if kind != "eagle3":
        assert max(limit for _, _, limit in case.drafter.seen) == case.head.block_tokens
    case.check(target)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_did_not_draft_for_long_draft_as_if_they_had(target, monkeypatch, kind):
    case = Case(kind, num_slots=2)
    engine, lengths, rounds = engine_over(target, case.drafter, num_slots=2), FixedSchedule.lengths, []

    def now_and_then(schedule, sequences):
        rounds.append(None)
        drafts = len(rounds) % 25 == 0
        return tuple(n if drafts and row else 0 for row, n in enumerate(lengths(schedule, sequences)))

    with monkeypatch.context() as patched:
        patched.setattr(FixedSchedule, "lengths", now_and_then)
        engine.generate(random_prompts([9, 4, 6, 7]), SamplingParams(max_tokens=60, temperature=0))
    assert len(case.drafter.seen) >= 2
    engine.generate(random_prompts([9, 4, 7]), SamplingParams(max_tokens=30, temperature=0))
    case.check(target)


@pytest.mark.parametrize(
    ("kind", "variant"),
    [("eagle3", "original"), ("peagle", "eagle 3.1"), ("dflash", "dflash"), ("dflash", "rnn")],
)
def test_a_row_that_does_not_draft_may_stand_between_those_that_draft_longest(target, monkeypatch, kind, variant):
    """In the first step only some rows are gathered; the later ones go over the first slots, with a row between."""
    case, wanted = Case(kind, num_slots=12, **KINDS[kind].variants[variant]), [3, 0, 3, *[0] * 7, 1, 1]
    lengths = FixedSchedule.lengths
    monkeypatch.setattr(
        FixedSchedule, "lengths", lambda schedule, rows: tuple(map(min, lengths(schedule, rows), wanted))
    )
    params = SamplingParams(max_tokens=20, temperature=0)
    engine_over(target, case.drafter, num_slots=12).generate(random_prompts([6] * 12), params)
    case.check(target)


def test_a_row_that_began_with_one_token_drafts_as_any_other_after_rounds_without_a_draft(target, monkeypatch):
    case = Case("eagle3")
    lengths, most = FixedSchedule.lengths, iter([3, 3, 0, 0, 0, 0, 0, 0])  # of the others, asked twice a round

    def first_row_waits(schedule, rows):
        found, limit = lengths(schedule, rows), next(most, None)
        return found if limit is None else (0, *[min(limit, each) for each in found[1:]])

    monkeypatch.setattr(FixedSchedule, "lengths", first_row_waits)
    prompts = [[5], *random_prompts([7, 4])]
    engine_over(target, case.drafter).generate(prompts, SamplingParams(max_tokens=30, temperature=0))
    case.check(target)


@pytest.mark.parametrize(("kind", "budget"), [("eagle3", 5), ("dflash", None)])
def test_rows_longer_than_the_heads_context_draft_up_to_its_end_and_hold_no_features_behind_it(target, kind, budget):
    case = Case(kind, layer={"max_position_embeddings": 16})
    receive, held = case.drafter.receive, []

    def watched(*given):
        receive(*given)
        held.extend(start for pieces in getattr(case.drafter, "_held", {}).values() for start, _ in pieces)

    case.drafter.receive = watched
    engine = engine_over(target, case.drafter, max_prefill_tokens=budget)
    params = SamplingParams(max_tokens=30, temperature=0)
    prompts = [*PROMPTS, *random_prompts([40, 22]), random_prompts([40])[0]]
    plain = text_of_the_target_alone(target, prompts, params)
    for _ in range(2):  # the second time, prefixes of long rows are copied
        found = engine.generate(prompts, params)
        assert outputs(found) == plain
    assert max(len(tokens) + len(drafted) for tokens, drafted, _ in case.drafter.seen) == 16
    if kind == "eagle3":
        assert found[-1].num_cached_tokens == 38, "what a head does not read need not be read again"
        assert 8 < max(held) < 16
    case.check(target)


@pytest.mark.parametrize(("kind", "num_slots"), [("eagle3", 1), ("eagle3", 3), ("dflash", 1), ("dflash", 3)])
@torch.no_grad()
def test_a_head_that_breaks_at_a_token_changes_no_text_and_spoils_no_later_row(target, kind, num_slots):
    case = Case(kind, num_slots, draft_vocab_size=30)
    engine, params = (
        engine_over(target, case.drafter, num_slots=num_slots),
        SamplingParams(max_tokens=12, temperature=0),
    )
    never_drafted = set(range(VOCAB_SIZE)) - {*some_target_ids(case.config).tolist(), case.config.mask_token_id}
    poison = min(never_drafted)
    case.drafter.head.network.embed_tokens.weight[poison] = float("nan")
    # A slot serves sound rows after broken ones. EAGLE-3 reads pairs, so the newest token must not be the first broken.
    broken = [[6, 4, poison], [6, 4, 9, 8, poison]] if kind == "dflash" else [[3, poison, 4], [3, poison, 4, 9, 8]]
    prompts = [*broken, [2, 7, 1], [7, poison]]
    found = engine.generate(prompts, params)
    assert outputs(found) == text_of_the_target_alone(target, prompts, params)
    assert not sum(found[0].accepted_per_position)
    case.drafter.seen.clear()
    rows = engine.generate([[9, 9], [3, 4, 4, 1], [8, 3], [8, 1]], params)
    assert not any(poison in row.token_ids for row in rows)
    assert all(row.num_draft_tokens for row in rows)
    case.check(target)


@pytest.mark.parametrize("verification", ["coupled", "rejection"])
@pytest.mark.parametrize("kind", KINDS)
def test_two_lanes_share_a_head(target, kind, verification):
    case = Case(kind, 2, draft_vocab_size=30, **({"kind": "dspark"} if kind == "dflash" else {}))
    drafters = [case.drafter, case.watched(2)]
    settings = EngineOptions(num_slots=4, num_speculative_tokens=3, max_model_len=80, verification=verification)
    engine = Engine([(target, drafters[0]), (target.share(), drafters[1])], settings, 80)
    params = SamplingParams(max_tokens=15, temperature=0)
    assert outputs(engine.generate(PROMPTS, params)) == text_of_the_target_alone(target, PROMPTS, params)
    for drafter in drafters:
        case.check(target, drafter)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_whose_features_were_not_handed_out_for_a_while_drafts_no_more(target, kind, monkeypatch):
    case, params = Case(kind), SamplingParams(max_tokens=14, temperature=0)
    with monkeypatch.context() as patched:
        schedule_at_random(patched, 0)
        found = engine_over(target, case.drafter).generate(PROMPTS * 6, params)
    assert 0 < sum(row.num_draft_tokens > 0 for row in found) < len(found)
    assert outputs(found) == text_of_the_target_alone(target, PROMPTS * 6, params)
    case.check(target)


def test_a_draft_ends_where_the_head_says_that_the_next_token_does_not_pay(target):
    case = Case("dflash", kind="dspark")
    case.drafter.min_survival = 0.2
    engine_over(target, case.drafter, num_drafted=5).generate(PROMPTS, SamplingParams(max_tokens=20, temperature=0))
    lengths = [len(drafted) for _, drafted, limit in case.drafter.seen if limit == 5]
    assert set(lengths) >= {1, 2, 5}
    case.check(target)


@pytest.mark.parametrize("verification", ["coupled", "rejection"])
def test_the_target_reads_no_token_behind_the_end_of_a_draft(target, monkeypatch, verification):
    case = Case("dflash", kind="dspark")
    case.drafter.min_survival = 0.2
    score, read = target.score, []

    def watched_score(request):
        read.append((request.lengths, request.draft.num_draft_tokens_B.tolist(), request.token_ids_BJ.shape[1]))
        return score(request)

    monkeypatch.setattr(target, "score", watched_score)
    engine = engine_over(target, case.drafter, num_drafted=5, verification=verification)
    engine.generate(PROMPTS, SamplingParams(max_tokens=20, temperature=0.9, ignore_eos=True))
    assert all(lengths == [1 + n for n in drafted] for lengths, drafted, _ in read)
    assert {width for *_, width in read} > {2, 3}
    assert all(width == max(lengths) for lengths, _, width in read)


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


def test_nothing_is_copied_from_a_slot_that_was_cleared(target):
    drafter = Case("dflash").drafter
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


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_does_not_wait_for_a_text_that_is_scored_since_the_head_has_none_of_its_features(target, kind):
    (prompt,) = random_prompts([60])
    engine = engine_over(target, Case(kind).drafter, num_slots=2, max_prefill_tokens=8)
    row = Sequence.create(prompt, SamplingParams(max_tokens=4, temperature=0))
    engine.submit([*engine.rows_of([ScoredText.whole([*prompt, 5])]), row])
    engine.step()
    residents = engine.lanes[0].admission._residents
    assert [resident.leader for resident in residents] == [None, None]
    list(engine.stream([]))
    assert outputs([row]) == text_of_the_target_alone(target, [prompt], SamplingParams(max_tokens=4, temperature=0))
    assert row.num_draft_tokens > 0
