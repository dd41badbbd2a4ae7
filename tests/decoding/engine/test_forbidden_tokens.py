"""Text under allowed_token_ids and bad_words is what the target writes of the tokens that are left, whatever drafts."""

from dataclasses import replace
from functools import partial

import pytest
from transformers.generation import logits_process as hf

from decoding import SamplingParams, Sequence
from decoding.drafters.stepwise import StepwiseDrafter
from decoding.sampling.rows import Rows
from tests.decoding.grammar.tiny_grammars import END, STRUCTURED, fulfils, grammars, text_of, with_end
from tests.decoding.tiny import (
    EVERY_DRAFTER,
    VOCAB_SIZE,
    engine_by,
    generated,
    outputs,
    random_prompts,
    run,
)
from tests.worlds.rows import PAIRS, forbidden
from tests.worlds.text_world import TextWorld

LETTERS_AND_DIGITS = STRUCTURED[2]
KINDS = [d for d in EVERY_DRAFTER if d != "model"] + ["good_draft", "perfect_draft"]
PROMPTS = random_prompts([7, 1, 12, 3, 25, 9, 2, 16], seed=4)


@pytest.fixture(scope="module")
def world(models) -> TextWorld:
    return TextWorld(models, forbidden)


@pytest.fixture(params=KINDS)
def make_engine(request, models):
    return partial(engine_by, models, request.param)


def _is_clean(sequence: Sequence) -> bool:
    params, tokens = sequence.params, sequence.output_token_ids
    has_bad = any(
        tuple(tokens[end - len(word) : end]) == word
        for word in params.bad_words
        for end in range(len(word), len(tokens) + 1)
    )
    return not has_bad and (params.allowed_token_ids is None or set(tokens) <= set(params.allowed_token_ids))


def test_rejection_never_writes_what_is_forbidden(make_engine):
    for sequence in run(make_engine(verification="rejection"), forbidden()):
        assert sequence.error is None
        assert _is_clean(sequence)


def test_rejection_fails_as_many_rows_at_dead_ends_with_a_draft_as_without(models):
    """A token that leaves nothing behind it is written as often as the target draws it."""
    params = SamplingParams(temperature=1.0, max_tokens=3, allowed_token_ids=[1, 2], bad_words=[(1, 1), (1, 2)])
    num_written = []
    for drafter in ("none", "perfect_draft"):
        rows = [Sequence.create([3, 5, 7], params, run_seed=11, row=row) for row in range(300)]
        run(engine_by(models, drafter, verification="rejection", num_slots=8), rows)
        num_written.append(sum(row.error is None for row in rows))
    assert abs(num_written[0] - num_written[1]) < 20  # where accepted tokens were drawn again, the draft wrote 40 more


def test_without_the_fields_the_texts_would_have_what_they_forbid(models, world):
    free = forbidden()
    for sequence in free:
        sequence.params = replace(sequence.params, allowed_token_ids=None, bad_words=())
    texts = outputs(run(engine_by(models, "none", num_slots=1), free))
    assert [text == own for text, own in zip(texts, world.alone, strict=True)][2::4] == [True, True], (
        "these forbid nothing"
    )
    assert sum(text != own for text, own in zip(texts, world.alone, strict=True)) >= 5


def test_greedy_text_is_that_of_transformers_with_its_own_processors(models, folders):
    """transformers also forbids a bad word that begins in the prompt; here no word begins with the prompt's last."""
    words = [word for word in PAIRS if word[0]]
    forbid = hf.LogitsProcessorList(
        [
            hf.SuppressTokensLogitsProcessor(list(range(30, VOCAB_SIZE))),
            hf.NoBadWordsLogitsProcessor(list(map(list, words))),
        ]
    )
    prompts = [[*prompt, 0] for prompt in PROMPTS[:4]]
    params = SamplingParams(temperature=0, max_tokens=20, bad_words=words, allowed_token_ids=tuple(range(30)))
    found = outputs(engine_by(models, "good_draft").generate(prompts, params))
    assert found == generated(folders.target, prompts, 20, logits_processor=forbid)


def test_logprobs_are_those_of_the_raw_logits(models):
    """A forbidden token is listed among the likely ones, with the probability that it would have had."""
    engine = engine_by(models, "good_draft")
    (free,) = engine.generate([PROMPTS[0]], SamplingParams(temperature=0, max_tokens=1, logprobs=2))
    best = free.output_token_ids[0]
    (held,) = engine.generate([PROMPTS[0]], SamplingParams(temperature=0, max_tokens=1, logprobs=2, bad_words=[[best]]))
    assert held.output_token_ids[0] == free.logprobs[0].top[1][0]
    assert [token for token, _ in held.logprobs[0].top] == [token for token, _ in free.logprobs[0].top]
    assert held.logprobs[0].top[0][1] == pytest.approx(free.logprobs[0].logprob, abs=1e-5)


def test_a_draft_that_knows_nothing_of_them_writes_the_same_text_and_is_accepted_less(models, world, monkeypatch):
    propose = StepwiseDrafter.propose

    def careless(drafter: StepwiseDrafter, rows: Rows):
        return propose(drafter, replace(rows, sampling=replace(rows.sampling, forbidden=None)))

    accepted = [sum(s.num_accepted_tokens for s in run(engine_by(models, "perfect_draft"), forbidden()))]
    monkeypatch.setattr(StepwiseDrafter, "propose", careless)
    sequences = run(engine_by(models, "perfect_draft"), forbidden())
    world.compare(sequences)
    assert sum(s.num_accepted_tokens for s in sequences) < 0.8 * accepted[0]


def test_a_word_that_begins_in_the_prompt_is_not_forbidden(models):
    engine = engine_by(models, "none")
    (free,) = engine.generate([PROMPTS[0]], SamplingParams(temperature=0, max_tokens=1))
    word = (PROMPTS[0][-1], free.output_token_ids[0])
    (held,) = engine.generate([PROMPTS[0]], SamplingParams(temperature=0, max_tokens=1, bad_words=[word]))
    assert held.output_token_ids == free.output_token_ids


WRONG = {
    "token id 48 is outside": {"allowed_token_ids": [1, 48]},
    "token id 99 is outside": {"bad_words": [[1], [2, 99]]},
    "sampling.allowed_token_ids and sampling.bad_words leave no token after 0 output": {
        "allowed_token_ids": [1, 2],
        "bad_words": [[1], [2]],
    },
    "sampling.allowed_token_ids and sampling.min_tokens leave no token after 0 output": {
        "allowed_token_ids": [5],
        "stop_token_ids": [5],
        "min_tokens": 2,
    },
    "sampling.bad_words leaves no token after 0 output tokens": {"bad_words": [[token] for token in range(VOCAB_SIZE)]},
}


@pytest.mark.parametrize("message", WRONG)
def test_what_leaves_no_first_token_is_refused_before_it_runs(models, message):
    good, bad = forbidden()[:2]
    bad.params = SamplingParams(**WRONG[message])
    run(engine_by(models, "none"), [good, bad])
    assert good.error is None
    assert bad.num_rounds == 0
    assert bad.error.startswith(message)


def test_a_row_that_has_no_token_left_fails_alone_and_says_why(make_engine, world):
    sequences = forbidden()
    bad = Sequence.create(
        PROMPTS[0], SamplingParams(allowed_token_ids=[1, 2], bad_words=[(1, 1), (1, 2), (2, 2), (2, 1)])
    )
    run(make_engine(), [*sequences, bad])
    assert bad.error == "sampling.allowed_token_ids and sampling.bad_words leave no token after 1 output token"
    world.compare(sequences)


@pytest.mark.parametrize("drafter", ["none", "ngram", "good_draft"])
@pytest.mark.parametrize("verification", ["coupled", "rejection"])
def test_a_grammar_and_forbidden_tokens_hold_together(models, drafter, verification):
    """What both leave is written; where they leave nothing, the row says so."""
    ended = type(models)(**{**vars(models), "target": with_end(models.target)})
    engine = engine_by(ended, drafter, grammars=grammars(), verification=verification)
    params = SamplingParams(temperature=0, max_tokens=30, structured=LETTERS_AND_DIGITS)
    (free,) = engine.generate([PROMPTS[0]], params)
    word = free.output_token_ids[0]
    (held,) = engine.generate([PROMPTS[0]], replace(params, bad_words=[[word]]))
    assert held.finish_reason == "stop"
    assert fulfils(text_of(held.output_token_ids), LETTERS_AND_DIGITS)
    assert word not in held.output_token_ids
    (bad,) = engine.generate([PROMPTS[0]], replace(params, allowed_token_ids=[END, 9, 10]))
    assert bad.error == "sampling.allowed_token_ids and sampling.structured leave no token after 0 output tokens"


def test_texts_are_refused_where_there_is_no_tokenizer():
    with pytest.raises(ValueError, match=r"sampling\.bad_words has the text 'never', but token ids have no text"):
        Sequence.create([1], SamplingParams(bad_words=["never"]))
