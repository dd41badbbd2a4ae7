"""The engine's edges: what it refuses, what it reports, and in which order."""

import pytest
import torch

from decoding import Engine, EngineOptions, SamplingParams, Sequence
from decoding.choices import DRAFTERS, NEED_A_MODEL
from decoding.drafters.base import NoDrafter
from decoding.drafters.model import ModelDrafter
from tests.decoding import tiny
from tests.decoding.tiny import CONTEXT, VOCAB_SIZE, engine_over, numbered, outputs, random_prompts, run

PROMPTS = random_prompts([4, 1, 8], seed=5)
# tests/decoding/heads loads the others, which need a target of their own families.
OF_ANY_FAMILY = [name for name in DRAFTERS if name not in ("mtp", "assistant")]


@pytest.mark.parametrize("drafter", OF_ANY_FAMILY)
@pytest.mark.usefixtures("_any_head")
def test_load_and_generate_is_one_call(folders, drafter):
    options = EngineOptions(drafter=drafter, num_slots=2)
    heads = {"eagle3": folders.head, "dflash": folders.block_head}
    draft = heads.get(drafter, folders.good_draft) if drafter in NEED_A_MODEL else None
    engine = Engine.load(folders.target, draft, options, device="cpu", dtype="float32")
    sequences = engine.generate(PROMPTS, SamplingParams(temperature=0.8, max_tokens=6, n=2), seed=1)
    assert [s.prompt_token_ids for s in sequences] == [tuple(p) for p in PROMPTS for _ in range(2)]
    assert [s.finish_reason for s in sequences] == ["length"] * 6


def test_without_options_the_draft_model_drafts_if_there_is_one(folders):
    assert isinstance(Engine.load(folders.target, folders.good_draft, device="cpu").lanes[0].drafter, ModelDrafter)
    assert isinstance(Engine.load(folders.target, device="cpu").lanes[0].drafter, NoDrafter)


@pytest.mark.parametrize("drafter", NEED_A_MODEL)
def test_a_drafter_that_needs_a_draft_model_is_refused_without_one(folders, drafter):
    with pytest.raises(ValueError, match=rf"engine\.drafter is '{drafter}', but no draft model"):
        Engine.load(folders.target, options=EngineOptions(drafter=drafter), device="cpu")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_slots", 0),
        ("max_model_len", 1),
        ("max_prefill_tokens", 0),
        ("num_speculative_tokens", 0),
        ("num_speculative_tokens", 65),
        ("verification", "exact"),
        ("drafter", "ngarm"),
    ],
)
def test_an_invalid_option_is_an_error_that_names_it(field, value):
    with pytest.raises(ValueError, match=rf"engine\.{field} must be .+{value}"):
        EngineOptions(**{field: value})


def test_more_positions_than_the_target_sees_are_refused(folders):
    options = EngineOptions(drafter="none", max_model_len=CONTEXT + 1)
    with pytest.raises(ValueError, match=f"max_model_len is {CONTEXT + 1}.*at most {CONTEXT}"):
        Engine.load(folders.target, options=options, device="cpu")


def test_rows_that_are_longer_on_average_than_at_most_are_refused():
    with pytest.raises(ValueError, match=r"engine\.tokens_per_slot is 65, more than a row may have .*lower it"):
        EngineOptions(tokens_per_slot=65, max_model_len=64)


def test_a_mean_length_is_said_to_have_no_effect_where_rows_have_no_pages(folders, caplog):
    Engine.load(folders.target, options=EngineOptions(tokens_per_slot=20), device="cpu")
    assert "engine.tokens_per_slot has no effect" in caplog.text


def test_the_context_is_the_targets_own_by_default(folders):
    assert Engine.load(folders.target, device="cpu").max_model_len == CONTEXT


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_prompts_that_cannot_run_come_back_as_errors_and_their_neighbours_finish(models, drafter):
    engine = engine_over(models.target, models.good_draft, drafter, max_model_len=32)
    cases = {
        "no tokens": ([], {}),
        "32 tokens and the context is 32": ([1] * 32, {}),
        "50 tokens": ([1] * 50, {}),
        f"token id {VOCAB_SIZE} is outside": ([1, VOCAB_SIZE, 2], {}),
        "token id -1 is outside": ([1, -1], {}),
        "token id 99 is outside": ([1], {"logit_bias": {99: 1.0}}),
    }
    bad = [
        Sequence.create(prompt, SamplingParams(max_tokens=5, **params), tag=message)
        for message, (prompt, params) in cases.items()
    ]
    good = numbered(PROMPTS, max_tokens=5)
    run(engine, [*bad[:2], good[0], bad[2], good[1], *bad[3:], good[2]])
    for sequence in bad:
        assert sequence.finish_reason == "error"
        assert sequence.tag in sequence.error
        assert (sequence.output_token_ids, sequence.num_rounds) == ([], 0)
    assert outputs(good) == outputs(engine_over(models.target).generate(PROMPTS, SamplingParams(max_tokens=5)))


def test_a_prompt_one_token_short_of_the_context_gets_one_token(models):
    engine = engine_over(models.target, max_model_len=32)
    sequence = engine.generate([[1] * 31], SamplingParams(max_tokens=5))[0]
    assert (len(sequence.output_token_ids), sequence.finish_reason) == (1, "length")


def test_a_stop_string_without_a_condition_is_refused():
    with pytest.raises(ValueError, match="stop_condition"):
        Sequence.create([1], SamplingParams(stop="end"))


def test_stop_token_ids_outside_the_vocabulary_never_match(models):
    params = SamplingParams(max_tokens=4, min_tokens=2, stop_token_ids=[10**6, 2**31 - 1])
    plain = SamplingParams(max_tokens=4)
    engine = engine_over(models.target, models.good_draft, "model")
    assert outputs(engine.generate(PROMPTS, params)) == outputs(engine.generate(PROMPTS, plain))


def test_sequences_stream_in_the_order_in_which_they_finish(models):
    limits = [9, 2, 5]
    engine = engine_over(models.target, num_slots=3)
    sequences = [Sequence.create([row], SamplingParams(max_tokens=n), tag=n) for row, n in enumerate(limits)]
    assert [s.tag for s in engine.stream(sequences)] == sorted(limits)
    assert not engine.has_work


def test_an_engine_without_work_steps_to_nothing(models):
    engine = engine_over(models.target)
    assert engine.step() == []
    assert engine.generate([], SamplingParams()) == []


@pytest.mark.parametrize(("drafter", "num_top"), [("none", 0), ("ngram", 1), ("model", 20), ("hybrid", 5)])
def test_logprobs_are_those_of_a_fresh_forward(models, drafter, num_top):
    """Under the raw logits, whatever the sampling parameters did to them."""
    params = SamplingParams(
        temperature=0.6, top_k=9, repetition_penalty=1.4, logit_bias={3: 2.0}, max_tokens=14, logprobs=num_top
    )
    engine = engine_over(models.target, models.good_draft, drafter)
    for sequence in engine.generate(PROMPTS, params):
        assert len(sequence.logprobs) == len(sequence.output_token_ids)
        for index, (token, found) in enumerate(zip(sequence.output_token_ids, sequence.logprobs, strict=True)):
            behind = [*sequence.prompt_token_ids, *sequence.output_token_ids[:index]]
            expected = models.target.plain_logits(behind).log_softmax(-1)
            assert found.logprob == pytest.approx(expected[token].item(), abs=1e-4)
            best = expected.topk(num_top)
            assert [token for token, _ in found.top] == best.indices.tolist()
            assert [value for _, value in found.top] == pytest.approx(best.values.tolist(), abs=1e-4)


def test_logprobs_are_only_computed_where_they_are_asked_for(models):
    engine = engine_over(models.target)
    asked = Sequence.create([1], SamplingParams(max_tokens=3, logprobs=2))
    not_asked = Sequence.create([1], SamplingParams(max_tokens=3))
    run(engine, [asked, not_asked])
    assert (len(asked.logprobs), len(not_asked.logprobs)) == (3, 0)
    assert asked.output_token_ids == not_asked.output_token_ids


def test_the_models_weights_and_random_state_are_left_alone(models):
    before = [weight.clone() for weight in models.target.network.parameters()]
    state = torch.get_rng_state()
    engine_over(models.target, models.good_draft, "model").generate(PROMPTS, SamplingParams(max_tokens=6))
    assert all(torch.equal(a, b) for a, b in zip(before, models.target.network.parameters(), strict=True))
    assert torch.equal(state, torch.get_rng_state())


def test_more_top_logprobs_than_the_vocabulary_has_are_the_whole_vocabulary(tmp_path):
    small = tiny.loaded(tiny.build(tiny.llama_config(6), seed=1), tmp_path)
    sequence = engine_over(small).generate([[1, 2]], SamplingParams(max_tokens=2, logprobs=20))[0]
    assert [len(position.top) for position in sequence.logprobs] == [6, 6]
