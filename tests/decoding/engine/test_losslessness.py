"""Coupled text at temperature > 0 is a function of target, prompt, parameters and noise key, and of nothing else.

`make gpu-miniature` runs these tests with the attention and the picks of a GPU in Triton's interpreter, with every
drafter, and with fewer rows, tokens and lengths: a token takes some tenths of a second there.
"""

import random
from dataclasses import replace
from functools import partial

import pytest

from decoding import SamplingParams, Sequence
from decoding.gpu.available import is_interpreted
from decoding.grammar.structured import Structured
from tests.decoding import tiny
from tests.decoding.grammar.tiny_grammars import RECORD, grammars, with_end
from tests.decoding.tiny import (
    EVERY_DRAFTER,
    check_counts,
    engine_by,
    engine_over,
    numbered,
    outputs,
    random_prompts,
    run,
)

PROMPTS = random_prompts([7, 1, 12, 3, 25, 1, 9, 2, 16, 5, 4, 31, 6, 10, 8, 2, 11, 3], seed=4)
# Every row has its own parameters; a prompt that repeats itself gives the n-gram drafter something to find.
PROMPTS[4] = [5, 6, 7, 8, 9] * 5
BRACKETS = 'start: item item*\nitem: "[" inside "]" | "{" inside "}"\ninside: W | item\nW: /[a-z]{1,3}/'
PARAMS = [
    SamplingParams(max_tokens=20, temperature=0.8),
    SamplingParams(max_tokens=24, temperature=0),
    SamplingParams(max_tokens=1, temperature=1.3, top_k=5),
    SamplingParams(max_tokens=17, temperature=0.7, top_p=0.8),
    SamplingParams(max_tokens=30, temperature=0.4, repetition_penalty=1.4),
    SamplingParams(max_tokens=2, temperature=1.0, min_p=0.1, presence_penalty=0.7),
    SamplingParams(max_tokens=22, temperature=0.9, top_k=12, top_p=0.9, min_p=0.02, frequency_penalty=0.5),
    SamplingParams(max_tokens=24, temperature=1.0, logit_bias={3: 4.0, 4: -100}, stop_token_ids=(11, 30)),
    SamplingParams(max_tokens=24, temperature=2.0, min_tokens=6, stop_token_ids=tuple(range(20))),
    SamplingParams(max_tokens=13, temperature=0, repetition_penalty=1.8, frequency_penalty=-0.4, presence_penalty=1.0),
    SamplingParams(max_tokens=3, temperature=0.6, seed=99),
    SamplingParams(max_tokens=19, temperature=1.0, repetition_penalty=0.7, top_p=0.6),
    SamplingParams(max_tokens=20, temperature=0.9, bad_words=[(a, b) for a in range(48) for b in range(a % 3, 48, 3)]),
    SamplingParams(max_tokens=18, temperature=0, allowed_token_ids=tuple(range(9, 30)), bad_words=[[9], (11, 12, 13)]),
    SamplingParams(max_tokens=24, temperature=0.8, structured=Structured(json_object=True), repetition_penalty=1.2),
    SamplingParams(max_tokens=24, temperature=0, structured=Structured(json_schema=RECORD)),
    SamplingParams(max_tokens=24, temperature=1.0, structured=Structured(grammar=BRACKETS), logprobs=2),
    SamplingParams(max_tokens=24, temperature=0.7, structured=Structured(regex="[a-d]{3,20}-[0-9]{2}"), top_p=0.9),
]
GRAMMARS = grammars()
NUM_SPECULATIVE_TOKENS: list[int] = list(range(1, 9))
NUM_SLOTS = [1, 2, 5, 12, 16]
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))]  # of orders and lengths by chance
NUM_NEW_TOKENS, NUM_SAMPLES = 12, 5
LENGTHS = [1, *(pytest.param(length, marks=pytest.mark.slow) for length in (2, 70)), 64, 65]  # near the end of a bucket
OTHER_LENGTHS, MAX_MODEL_LEN = [3, 60], 80

if is_interpreted():
    _FEW = (0, 1, 4, 6, 7, 8, 12, 16)
    PROMPTS = [PROMPTS[row] for row in _FEW]
    PARAMS = [replace(PARAMS[row], max_tokens=6, min_tokens=min(PARAMS[row].min_tokens, 2)) for row in _FEW]
    NUM_SPECULATIVE_TOKENS, NUM_SLOTS, SEEDS = [1, 3, 8], [2, 6], [0]
    NUM_NEW_TOKENS, NUM_SAMPLES = 4, 2
    LENGTHS, OTHER_LENGTHS, MAX_MODEL_LEN = [64], [60], 68


def _sequences() -> list[Sequence]:
    return [
        Sequence.create(prompt, params, run_seed=3, row=row, tag=row)
        for row, (prompt, params) in enumerate(zip(PROMPTS, PARAMS, strict=True))
    ]


@pytest.fixture(scope="module")
def plain(models) -> list[list[int]]:
    """Each row alone, one token a round."""
    engine = engine_over(with_end(models.target), num_slots=1, grammars=GRAMMARS)
    texts = [outputs(run(engine, [sequence]))[0] for sequence in _sequences()]
    assert len({tuple(text) for text in texts}) == len(texts)
    assert any(len(text) < p.max_tokens for text, p in zip(texts, PARAMS, strict=True)), "some text ends by a stop id"
    return texts


@pytest.fixture(params=[d for d in EVERY_DRAFTER if d != "model"] + ["good_draft", "unrelated_draft", "perfect_draft"])
def make_engine(request, models):
    """An engine with each drafter, and the `model` drafter with each draft; `hybrid` has the good one."""
    ended = type(models)(**{**vars(models), "target": with_end(models.target)})
    return partial(engine_by, ended, request.param, grammars=GRAMMARS)


@pytest.mark.parametrize("num_speculative_tokens", NUM_SPECULATIVE_TOKENS)
def test_text_does_not_depend_on_drafter_or_draft_length(make_engine, plain, num_speculative_tokens):
    engine = make_engine(num_speculative_tokens=num_speculative_tokens, num_slots=4)
    sequences = run(engine, _sequences())
    assert outputs(sequences) == plain
    for sequence in sequences:
        check_counts(sequence)


@pytest.mark.parametrize("num_slots", NUM_SLOTS)
def test_text_does_not_depend_on_the_number_of_slots(make_engine, plain, num_slots):
    assert outputs(run(make_engine(num_slots=num_slots), _sequences())) == plain


@pytest.mark.parametrize("seed", SEEDS)
def test_text_does_not_depend_on_the_order_of_submission(make_engine, plain, seed):
    sequences = _sequences()
    random.Random(seed).shuffle(sequences)
    run(make_engine(), sequences)
    assert {s.tag: s.output_token_ids for s in sequences} == dict(enumerate(plain))


@pytest.mark.parametrize("seed", SEEDS)
def test_text_does_not_depend_on_when_a_row_is_submitted(make_engine, plain, seed):
    chance = random.Random(seed)
    engine, waiting, finished = make_engine(num_slots=4), _sequences(), []
    while waiting or engine.has_work:
        num_arriving = chance.choice([0, 0, 1, 2])
        engine.submit(waiting[:num_arriving])
        waiting = waiting[num_arriving:]
        finished += engine.step()
    assert {s.tag: s.output_token_ids for s in finished} == dict(enumerate(plain))


@pytest.mark.parametrize("seed", SEEDS)
def test_text_does_not_depend_on_how_the_schedule_chooses_draft_lengths(make_engine, plain, seed, monkeypatch):
    tiny.schedule_at_random(monkeypatch, seed)
    assert outputs(run(make_engine(num_speculative_tokens=6, num_slots=5), _sequences())) == plain


def test_an_engine_used_before_gives_the_same_text(make_engine, plain):
    engine = make_engine()
    run(engine, numbered(PROMPTS, max_tokens=NUM_NEW_TOKENS - 3, seed=50))
    assert outputs(run(engine, _sequences())) == plain


def test_each_of_n_samples_is_the_same_alone_and_among_the_others(make_engine, models):
    params = SamplingParams(n=NUM_SAMPLES, temperature=1.0, max_tokens=NUM_NEW_TOKENS)
    together = outputs(make_engine(num_slots=3).generate(PROMPTS[:3], params, seed=8))
    assert len({tuple(text) for text in together}) == 3 * NUM_SAMPLES
    alone = engine_over(with_end(models.target), num_slots=1)
    for index, text in enumerate(together):
        row, sample = divmod(index, NUM_SAMPLES)
        sequence = Sequence.create(PROMPTS[row], params, run_seed=8, row=row, sample=sample)
        assert outputs(run(alone, [sequence])) == [text]


def test_noise_decides_the_text_and_the_same_noise_the_same_text(models):
    engine = engine_over(models.target)
    params = SamplingParams(temperature=1.0, max_tokens=NUM_NEW_TOKENS)

    def text(run_seed: int, seed: int | None = None) -> list[int]:
        own = SamplingParams(temperature=1.0, max_tokens=NUM_NEW_TOKENS, seed=seed)
        return outputs(run(engine, [Sequence.create(PROMPTS[0], own, run_seed=run_seed)]))[0]

    assert text(1) == text(1) != text(2)
    assert text(1, seed=7) == text(2, seed=7) != text(1)
    same_prompt_twice = outputs(engine.generate([PROMPTS[0], PROMPTS[0]], params))
    assert same_prompt_twice[0] != same_prompt_twice[1]


@pytest.mark.parametrize("length", LENGTHS)
def test_text_does_not_depend_on_the_drafter_near_bucket_and_context_limits(make_engine, models, length):
    """The cache shows positions in buckets of 64, and drafts of longer rows run past the end of the slot."""
    prompts = random_prompts([length, *OTHER_LENGTHS], seed=length)
    params = SamplingParams(temperature=1.0, max_tokens=200, ignore_eos=True)
    expected = engine_over(models.target, max_model_len=MAX_MODEL_LEN, num_slots=1).generate(prompts, params)
    found = make_engine(max_model_len=MAX_MODEL_LEN, num_speculative_tokens=8).generate(prompts, params)
    assert outputs(found) == outputs(expected)
    assert [len(s) for s in found] == [MAX_MODEL_LEN] * len(prompts)
