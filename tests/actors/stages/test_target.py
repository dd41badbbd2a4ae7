"""A target in stages writes the same tokens as in one process, whichever stages die; a lasting failure is an error."""

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import ray

from actors.stages.group import StageGroup
from actors.stages.pipeline import StagesGoneError
from actors.stages.target import ShardedModel
from decoding.engine.scored_text import ScoredText
from decoding.engine.token_engine import TargetLostError
from decoding.network.language_model import LanguageModel
from decoding.network.target import SlotsLostError
from decoding.sequence import Sequence
from tests.actors.sharded import (
    PARAMS,
    POISON,
    PROMPTS,
    SAMPLED,
    Pair,
    PoisonedGroup,
    kill,
    kill_and_wait,
    make_engine,
    make_sequences,
    sharded,
    texts,
)
from tests.decoding.families import STATES, family_network
from tests.decoding.tiny import noised, random_prompts, rows_over, save

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_address", "one_thread")]
GREEDY = replace(PARAMS, temperature=0.0)
Texts = list[list[int]]


@pytest.fixture(scope="module")
def model(ray_address: str, pair: Pair) -> Iterator[ShardedModel]:
    """Two stages, which die over the poisonous token."""
    with sharded(pair[0], 2, PoisonedGroup) as model:
        yield model


@pytest.mark.parametrize(
    ("drafter", "params"),
    [
        pytest.param("none", SAMPLED, id="none-sampled"),
        pytest.param("suffix", GREEDY, id="suffix-greedy"),
        pytest.param("model", GREEDY, id="model-greedy"),
        pytest.param("model", SAMPLED, id="model-sampled"),
        pytest.param("none", GREEDY, id="none-greedy", marks=pytest.mark.slow),
        pytest.param("suffix", SAMPLED, id="suffix-sampled", marks=pytest.mark.slow),
    ],
)
def test_the_text_is_the_one_of_the_same_target_in_one_process(pair, model, drafter, params):
    expected = texts(make_engine(pair, None, drafter), make_sequences(replace(params, n=2)))
    engine, sequences = make_engine(pair, model, drafter), make_sequences(replace(params, n=2))
    assert texts(engine, sequences) == expected
    assert len(engine.lanes) == 2
    assert sum(s.num_cached_tokens for s in sequences) > 40, "prompts that begin alike share what was read"


def test_a_target_whose_layers_keep_states_writes_the_same_in_stages(ray_address, tmp_path):
    target = family_network("gated delta", STATES)
    pair = save(target, tmp_path / "target"), save(noised(target, 0.1), tmp_path / "draft")
    params, settings = replace(SAMPLED, n=2), {"max_model_len": 96, "max_prefill_tokens": 7}
    expected = texts(make_engine(pair, None, **settings), make_sequences(params))
    with sharded(pair[0], 2) as model:
        sequences = make_sequences(params)
        assert texts(make_engine(pair, model, **settings), sequences) == expected
    assert sum(s.num_accepted_tokens for s in sequences) > 20
    assert sum(s.num_cached_tokens for s in sequences) > 40, "samples of a prompt share the state at its end"


@pytest.mark.parametrize("verification", ["coupled", "rejection"])
def test_penalties_bad_words_logprobs_and_rejection_are_the_same_on_the_last_stage(pair, model, verification):
    params = replace(SAMPLED, repetition_penalty=1.3, presence_penalty=0.5, min_tokens=4, top_p=0.9, logprobs=2)
    params = replace(params, bad_words=[(a, b) for a in range(40) for b in range(a % 2, POISON, 2)])
    whole, staged = make_sequences(params), make_sequences(params)
    texts(make_engine(pair, None, verification=verification), whole)
    texts(make_engine(pair, model, num_lanes=1, verification=verification), staged)
    for expected, found in zip(whole, staged, strict=True):
        assert found.output_token_ids == expected.output_token_ids
        assert [next(zip(*at.top, strict=True)) for at in found.logprobs] == [
            next(zip(*at.top, strict=True)) for at in expected.logprobs
        ]


@pytest.mark.parametrize("in_slot", [None, 1])
def test_a_token_that_is_decided_alone_is_the_same(pair, model, in_slot):
    whole = LanguageModel.load(pair[0], "cpu", "float32")
    for target in (whole, model):
        target.allocate(3, 60)
    for sequence in make_sequences(
        replace(SAMPLED, bad_words=[(2, 9), (9,)], presence_penalty=1.0, logprobs=1), PROMPTS[:4]
    ):
        rows = rows_over([sequence], [0])
        expected = whole.decide(rows, [4, 2], 1, in_slot)
        found = model.decide(rows, [4, 2], 1, in_slot)
        assert (found.next_token, found.is_finite) == (expected.next_token, True)
        assert found.logprobs[0].logprob == pytest.approx(expected.logprobs[0].logprob, abs=1e-4)


@pytest.mark.parametrize(
    "dies_at",
    [{6: 0}, pytest.param({6: 0, 13: 1}, marks=pytest.mark.slow)],  # one alone dies below, over slots that were copied
    ids=["the first", "one after the other"],
)
def test_a_stage_that_dies_is_replaced_and_the_text_stays_the_same(pair, model, sampled, dies_at):
    group = model.pipeline.group
    before = group.num_replaced
    deaths = {step: partial(kill, model, stage) for step, stage in dies_at.items()}
    assert texts(make_engine(pair, model), make_sequences(SAMPLED), deaths) == sampled
    assert group.num_replaced - before == len(dies_at)


@pytest.mark.parametrize("where", ["in its prompt", pytest.param("in its output", marks=pytest.mark.slow)])
def test_a_row_that_kills_stages_again_and_again_ends_the_engine_and_no_token_is_lost(pair, model, sampled, where):
    """The ledger then finds the row, as it does for all rows that kill processes (tests/jobs/test_placements.py)."""
    before = model.pipeline.group.num_replaced
    sequences = make_sequences(SAMPLED)
    if where == "in its prompt":
        poisoned = Sequence.create([1, 2, POISON, 3], SAMPLED, row=99)
    else:
        poisoned = Sequence.create([1, 2, 3], replace(SAMPLED, logit_bias={POISON: 100.0}), row=99)
    engine = make_engine(pair, model)
    with pytest.raises(TargetLostError, match="3 times over rows that wrote nothing in between"):
        texts(engine, [*sequences[:3], poisoned, *sequences[3:]])
    assert model.pipeline.group.num_replaced == before + 3
    engine.drop([poisoned])
    texts(engine, [])
    assert [sequence.output_token_ids for sequence in sequences] == sampled


def test_a_scored_prompt_that_kills_stages_fails_alone(pair, model, sampled):
    engine, sequences = make_engine(pair, model), make_sequences(SAMPLED)
    engine.submit(sequences)
    for _ in range(4):
        engine.step()
    scored = [ScoredText.whole([1, 2, 3, 4]), ScoredText.whole([1, 2, POISON, 3]), ScoredText.whole([5, 6])]
    engine.score(scored)
    assert [text.error is None for text in scored] == [True, False, True]
    assert "the target was lost over this text, twice" in str(scored[1].error)
    texts(engine, [])
    assert [sequence.output_token_ids for sequence in sequences] == sampled


def test_slots_that_are_copied_and_swapped_hold_what_they_should_and_are_lost_with_a_stage(model):
    first, second = PROMPTS[2], PROMPTS[4]
    model.allocate(4, 60)
    model.prefill([0, 1], [first, second])
    assert model.cache is not None
    model.cache.copy(0, 2, 20)
    model.cache.swap(1, 2, 12, 20)
    model.cache.swap(0, 3, 30, 0)
    places = ([1, 2, 3], [20, 12, 30], [[5], [5], [5]])
    found = model.logits(*places)
    other = model.share()
    other.allocate(1, 60)
    kill_and_wait(model, 1)
    with pytest.raises(SlotsLostError):
        model.logits(*places)
    with pytest.raises(SlotsLostError):
        other.prefill([0], [first])
    model.allocate(4, 60)
    model.prefill([1, 2, 3], [first[:20], second[:12], first])
    expected = model.logits(*places)
    assert (found - expected).abs().max() < 1e-4 < (expected[0] - expected[1]).abs().max()


def test_a_session_that_is_made_while_a_stage_is_lost_asks_the_stages_nothing(model):
    kill_and_wait(model, 0)
    other = model.share()
    other.allocate(1, 60)
    other.prefill([0], [[1, 2, 3]])
    assert other.logits([0], [3], [[5]]).isfinite().all()


def test_a_loss_that_another_session_found_is_a_loss_of_every_step_that_was_in_flight(pair, model, sampled):
    def lose() -> None:
        assert model.pipeline._flying, "a lane waits in the middle of its round"
        kill(model, 1)
        model.share().allocate(1, 60)  # replaces the stage

    assert texts(make_engine(pair, model, "none"), make_sequences(SAMPLED), {8: lose}) == sampled


class GoneGroup(StageGroup):
    """There is no room for a second actor."""

    has_room = True

    def _start(self, stage: int) -> list[Any]:
        if self.has_room:
            return super()._start(stage)
        make = ray.remote(self.actor_class).options(resources={"nowhere": 1}).remote
        return [make(*self._arguments[:1], 0, 1, "cpu", "auto")]


@pytest.mark.slow
def test_stages_that_cannot_be_replaced_are_an_error_in_bounded_time(pair, ray_address):
    with sharded(pair[0], 1, GoneGroup, most_restarts=2, start_timeout_s=60.0) as model:
        group = model.pipeline.group
        group.has_room = False
        group.settings = replace(group.settings, start_timeout_s=1.0, timeout_s=1.0)
        model.allocate(2, 60)
        model.prefill([0], [[1, 2, 3]])
        kill(model, 0)
        started = time.monotonic()
        with pytest.raises(StagesGoneError, match=r"could not be replaced.*did not answer in time"):
            model.logits([0], [3], [[5]])
        assert time.monotonic() - started < 60


def test_an_error_of_the_step_itself_is_not_a_loss(pair, model):
    model.allocate(2, 60)
    before = model.pipeline.group.num_replaced
    with pytest.raises(IndexError):
        model.logits([0], [0], [[10**6]])
    model.prefill([0], [[1, 2, 3]])
    assert model.logits([0], [3], [[5]]).isfinite().all()
    assert model.pipeline.group.num_replaced == before


@pytest.mark.slow
def test_the_text_is_the_same_where_transformers_own_code_runs_and_a_stage_dies(pair, model, sampled):
    """The last test of these stages: they stay so. Rounding then depends on the batch, and close calls are settled."""
    model.pipeline.group.tell_all("call", "slow_down", "a test asks for it")
    model.facts_of_stages = model.pipeline.facts()
    assert not model.is_batch_invariant
    assert texts(make_engine(pair, model), make_sequences(SAMPLED), {8: partial(kill, model, 0)}) == sampled
    assert not any(facts.is_fused for facts in model.pipeline.facts()), "the new stage was told so, too"


@pytest.mark.slow
def test_the_scores_of_a_prompt_are_those_of_the_model_in_one_piece(pair):
    (prompt,) = random_prompts([90], vocab_size=POISON, seed=5)
    whole, cut = ([ScoredText.whole(prompt, 2), ScoredText(tuple(prompt[:50]), ((5, 6, 7), (8,)), 2)] for _ in range(2))
    make_engine(pair, None, "none").score(whole)
    with sharded(pair[0], 3) as model:
        engine = make_engine(pair, model, "none")
        before = texts(engine, make_sequences(PARAMS))
        engine.score(cut)
        assert texts(engine, make_sequences(PARAMS)) == before
    scores = ([s for text in texts for s in text.scores] for texts in (whole, cut))
    for whole_scores, cut_scores in zip(*scores, strict=True):
        for expected, entry in zip(whole_scores, cut_scores, strict=True):
            assert entry.logprob == pytest.approx(expected.logprob, abs=1e-4)
            assert [token for token, _ in entry.top] == [token for token, _ in expected.top]


def test_a_stage_that_dies_or_fails_while_it_loads_is_replaced_or_loads_again(pair, ray_address):
    folder = Path(pair[0])
    (folder / "die_load").touch()
    with sharded(pair[0], 1, PoisonedGroup, most_restarts=20) as model:
        assert model.pipeline.group.num_replaced == 1

        def fail_and_die() -> None:
            (folder / "fail_load").touch()
            kill(model, 0)

        expected = texts(make_engine(pair, None, "none"), make_sequences(SAMPLED, PROMPTS[:4]))
        engine = make_engine(pair, model, "none", num_lanes=1)
        assert texts(engine, make_sequences(SAMPLED, PROMPTS[:4]), {4: fail_and_die}) == expected
        assert not (folder / "fail_load").exists()
        assert model.pipeline.group.num_replaced == 2, "the stage whose loading failed was told to load again"
