"""Drafters that take turns: each drafts as it would alone, whatever it has missed, and no text depends on it."""

import random
from pathlib import Path

import pytest

from decoding import Engine, EngineOptions, SamplingParams, Sequence
from decoding.cache.pages import NoPageError
from decoding.drafters.lookups.suffix import SuffixDrafter
from decoding.drafters.model import ModelDrafter
from decoding.engine.draft_folder import read_replacement
from decoding.pace.adaptive_schedule import AdaptiveSchedule
from decoding.pace.schedule import FixedSchedule
from decoding.pace.trials import REST, Trials
from tests.decoding.families import STATES, family_network
from tests.decoding.tiny import build, llama_config, numbered, outputs, random_prompts, run, save

PAIR = Path(__file__).parents[3] / "examples" / "tiny_pair"
PROMPTS = [*random_prompts([7, 12, 3, 25, 9, 2, 16], seed=4), [5, 6, 7, 8, 9] * 5]
PROMPTS += [PROMPTS[3] + tail for tail in random_prompts([2, 9], seed=5)]


@pytest.fixture(autouse=True)
def _turns_by_hand(monkeypatch):
    """No clock says whose turn it is, and who has a turn drafts as much as it may."""
    monkeypatch.setattr(Trials, "observe", lambda *_: False)
    monkeypatch.setattr(AdaptiveSchedule, "plan", FixedSchedule.plan)


def _engine(target: str, *turns: tuple[str, str | None], **options: object) -> Engine:
    settings = {"num_slots": 3, "num_speculative_tokens": 4, "max_model_len": 90, **options}
    named = [(name, draft, f"{Path(draft).name} ({name})" if draft else name) for name, draft in turns]
    return Engine.load(target, options=EngineOptions(**settings), device="cpu", turns=named)


def _turn_to(engine: Engine, way: int) -> None:
    engine.lanes[0].schedule.trials._settle(way)


def _counts(sequences: list[Sequence]) -> list[tuple[int, int]]:
    return [(s.num_draft_tokens, s.num_accepted_tokens) for s in sequences]


@pytest.mark.usefixtures("_any_head")
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_texts_are_the_targets_whoever_drafts(folders, temperature):
    perfect, heads = folders.perfect_draft, (("eagle3", folders.head), ("dflash", folders.block_head))
    turns = *heads, ("hybrid", folders.head), ("model", perfect), ("hybrid", perfect), ("suffix", None), ("ngram", None)
    engine, chance = _engine(folders.target, *turns), random.Random(3)
    sequences = numbered(PROMPTS, max_tokens=30, temperature=temperature)
    expected = outputs(
        run(_engine(folders.target, ("none", None)), numbered(PROMPTS, max_tokens=30, temperature=temperature))
    )
    engine.submit(sequences)
    while engine.has_work:
        if chance.random() < 0.4:
            _turn_to(engine, chance.choice([*range(len(turns)), REST]))
        if chance.random() < 0.05:
            engine.evict(chance.sample(engine.in_flight, k=min(2, len(engine.in_flight))))
        if chance.random() < 0.02:
            engine.resize(chance.choice([2, 3]))
        engine.step()
    assert outputs(sequences) == expected
    assert sum(s.num_accepted_tokens for s in sequences) > 20


@pytest.mark.parametrize("family", ["llama", "gated delta"])
def test_a_model_that_missed_rounds_and_rows_drafts_as_if_it_had_not(folders, family, tmp_path):
    """The draft is the target itself: whatever it drafts is accepted, if it knows each row's tokens and no others."""
    target = folders.target if family == "llama" else save(family_network(family, STATES), tmp_path)
    engine, chance = _engine(target, ("model", target), ("suffix", None), ("hybrid", target)), random.Random(6)
    sequences, num_drafted, num_rejected = numbered(PROMPTS, max_tokens=40, temperature=0), 0, 0
    engine.submit(sequences)
    while engine.has_work:
        way = chance.choice([0, 0, 1, REST])
        _turn_to(engine, way)
        before = _counts(sequences)
        for _ in range(chance.randint(1, 4)):
            engine.step()
        for (drafted, accepted), (all_drafted, all_accepted) in zip(before, _counts(sequences), strict=True):
            if way == 0:
                num_rejected += all_drafted - drafted - (all_accepted - accepted)
                num_drafted += all_drafted - drafted
    assert num_drafted > 100
    assert num_rejected <= 4 * (family != "llama"), "rounding decides a near tie of the model with states"


def test_in_a_rest_that_goes_on_newcomers_begin_in_no_slot_of_a_draft(folders):
    engine = _engine(folders.target, ("model", folders.target), ("suffix", None))
    model = engine.lanes[0].drafter.drafters[0]
    for way in (0, REST):
        _turn_to(engine, way)
        run(engine, numbered(PROMPTS[:3], max_tokens=9, temperature=0))
    known = [*model.slots.num_known]
    run(engine, numbered(PROMPTS, max_tokens=9, temperature=0))
    assert model.slots.num_known == known
    assert any(known)


def test_a_model_that_finds_no_page_as_it_wakes_wakes_in_the_next_round(folders, monkeypatch):
    engine = _engine(folders.target, ("none", None), ("model", folders.target))
    sequences = numbered(PROMPTS, max_tokens=20, temperature=0)
    engine.submit(sequences)
    engine.step()
    _turn_to(engine, 1)
    with monkeypatch.context() as full:
        full.setattr(ModelDrafter, "admit", lambda *_: (_ for _ in ()).throw(NoPageError))
        engine.step()
    while engine.has_work:
        engine.step()
    assert all(drafted == accepted > 0 for drafted, accepted in _counts(sequences))


def test_a_head_drafts_the_rows_that_begin_in_its_turn_as_it_does_alone():
    params = SamplingParams(max_tokens=24, temperature=0.8)
    prompts = random_prompts([9, 4, 14, 6, 11, 8], vocab_size=900, seed=2)

    def rows(first: int) -> list[Sequence]:
        return [Sequence.create(each, params, row=first + row) for row, each in enumerate(prompts)]

    target, head = str(PAIR / "target"), str(PAIR / "head")
    alone = _engine(target, ("eagle3", head))
    expected = [(s.num_rounds, *s.accepted_per_position) for s in run(alone, rows(6))]
    engine = _engine(target, ("model", str(PAIR / "draft")), ("eagle3", head))
    for way, before in ((1, rows(12)), (0, [Sequence.create([1], params)])):
        _turn_to(engine, way)
        run(engine, before)  # what the head knows of the first ones is of no use when it wakes
    earlier, later = rows(0), rows(6)
    engine.submit(earlier)
    for _ in range(3):
        engine.step()
    assert engine.target.tap is None, "no features are handed out that none reads"
    _turn_to(engine, 1)
    begun, drafted = engine.in_flight, [s.num_draft_tokens for s in engine.in_flight]
    lane, is_prepared = engine.lanes[0], []
    while any(not s.is_finished for s in begun):
        engine.step()
        is_prepared.append(lane.drafter.is_prepared(1, lane.running))
    assert [s.num_draft_tokens for s in begun] == drafted, "a row that has missed features drafts no more"
    assert not is_prepared[0]
    engine.step()
    assert lane.drafter.is_prepared(1, lane.running)
    list(engine.stream(later))
    assert [(s.num_rounds, *s.accepted_per_position) for s in later] == expected


def test_the_draft_of_an_engine_with_several_drafters_is_not_replaced(folders):
    engine = _engine(folders.target, ("model", folders.good_draft), ("suffix", None))
    with pytest.raises(ValueError, match="drafts with several drafters in turn"):
        engine.replace_draft(read_replacement(folders.perfect_draft, folders.good_draft), 1)


@pytest.mark.usefixtures("_any_head")
def test_each_drafter_has_costs_of_its_own_over_the_same_target(folders):
    turns = ("model", folders.good_draft), ("dflash", folders.block_head), ("suffix", None), ("ngram", None)
    engine = _engine(folders.target, *turns)
    costs = [schedule.costs for schedule in engine.lanes[0].schedules]
    assert [each.draft[-1][1] > 0 for each in costs] == [True, True, False, False]
    assert [each.block_tokens > 0 for each in costs] == [False, True, False, False]
    assert len({each.target for each in costs}) == len({each.round_seconds for each in costs}) == 1
    assert len({each.draft for each in costs[:2]}) == 2


def test_a_lookup_knows_the_texts_that_were_written_while_others_drafted(folders):
    engine = _engine(folders.target, ("model", folders.unrelated_draft), ("suffix", None))
    run(engine, numbered(PROMPTS, max_tokens=30, temperature=0))
    _turn_to(engine, 1)
    again = run(engine, numbered(PROMPTS, max_tokens=30, temperature=0))
    fresh = run(
        _engine(folders.target, ("suffix", None), ("ngram", None)), numbered(PROMPTS, max_tokens=30, temperature=0)
    )
    assert sum(s.num_rounds for s in again) < 0.7 * sum(s.num_rounds for s in fresh)


def test_a_lookup_that_wakes_learns_each_row_once(folders, monkeypatch):
    engine = _engine(folders.target, ("model", folders.unrelated_draft), ("suffix", None))
    sequences, learned, learn = numbered(PROMPTS[:3], max_tokens=30, temperature=0), [], SuffixDrafter._learn
    monkeypatch.setattr(SuffixDrafter, "_learn", lambda *args: learned.extend(args[3]) or learn(*args))
    engine.submit(sequences)
    for _ in range(4):
        engine.step()
    _turn_to(engine, 1)
    while engine.has_work:
        engine.step()
    known = [token for s in sequences for token in (*s.prompt_token_ids, *s.output_token_ids)]
    assert 0 < len(learned) <= len(known)


def test_a_draft_that_cannot_be_used_is_left_out_and_if_none_can_all_are_named(folders, tmp_path):
    other = save(build(llama_config(vocab_size=77), seed=3), tmp_path / "other")
    engine = _engine(folders.target, ("model", other), ("suffix", None), ("ngram", None))
    assert [*engine.learned.tallies] == ["suffix", "ngram", "none"]
    assert len(engine.left_out) == 1
    assert engine.left_out[0].startswith(f"{other}: ")
    alone = _engine(folders.target, ("model", other), ("suffix", None))
    assert [*alone.learned.tallies] == ["suffix", "none"], "who reads of it learns which one is left"
    with pytest.raises(ValueError, match=r"no draft in .* can be used"):
        _engine(folders.target, ("model", other))


def test_an_engine_with_fewer_slots_goes_on_with_what_it_has_learned(folders):
    engine = _engine(folders.target, ("model", folders.good_draft), ("suffix", None), ("ngram", None))
    _turn_to(engine, 1)
    engine.learned.tallies["suffix"].num_rounds = 5
    for _ in range(2):
        engine.resize(2)
    assert engine.learned.leader == "suffix"
    assert engine.learned.tallies["suffix"].num_rounds == 5
