"""A text ends where it should, at every offset inside a round, and the counts say so."""

from itertools import product

import pytest

from decoding import SamplingParams, Sequence
from tests.decoding.tiny import (
    EVERY_DRAFTER,
    check_counts,
    engine_by,
    engine_over,
    num_rechecks,
    numbered,
    random_prompts,
    run,
)

NUM_SPECULATIVE_TOKENS = 4
PROMPT = random_prompts([6], seed=1)[0]
OFFSETS = range(12)  # more than two rounds of full acceptance
KINDS = ["perfect_draft", "good_draft", *(name for name in EVERY_DRAFTER if name != "model")]
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUV"  # one for each token id


@pytest.fixture(params=KINDS)
def engine(request, models):
    return engine_by(models, request.param, num_speculative_tokens=NUM_SPECULATIVE_TOKENS, num_slots=2)


@pytest.fixture(scope="module")
def noise_seed(models) -> int:
    """A seed whose text has no token twice, so that every token of it can end it at its own place."""
    plain = engine_over(models.target)
    for seed in range(10_000):
        text = _generate(plain, seed)[0].output_token_ids
        if len(set(text)) == len(text):
            return seed
    raise AssertionError("no such seed")


@pytest.fixture(scope="module")
def text(models, noise_seed) -> list[int]:
    return _generate(engine_over(models.target), noise_seed)[0].output_token_ids


def _generate(engine, seed: int, *, neighbour: bool = False, **params: object) -> list[Sequence]:
    settings = {"temperature": 0.9, "max_tokens": len(OFFSETS) + 2, **params}
    condition = _stop_strings(*params["stop"]) if "stop" in params else None
    own = Sequence.create(PROMPT, SamplingParams(**settings), run_seed=seed, row=0, stop_condition=condition)
    others = [Sequence.create(PROMPT[:3], SamplingParams(max_tokens=20), run_seed=seed, row=1)] if neighbour else []
    run(engine, [own, *others])
    check_counts(own)
    return [own, *others]


def _stop_strings(*strings: str):
    """Text is one letter a token. Keeps up to the token that completes the first match, as the pipeline does."""

    def find(output_token_ids, num_checked):
        letters = "".join(LETTERS[token] for token in output_token_ids)
        for num_kept in range(num_checked + 1, len(letters) + 1):
            for string in strings:
                if letters[:num_kept].endswith(string):
                    return num_kept, string
        return None

    return find


@pytest.mark.parametrize("ending", ["a stop token", "the end token", "the length limit", "a stop string"])
def test_a_token_behind_an_end_is_never_emitted(engine, noise_seed, text, ending, monkeypatch):
    """Stop strings span rounds: they begin at tokens of one and are completed by a token of the next."""
    for offset, token in enumerate(text[: len(OFFSETS)]):
        string = "".join(LETTERS[each] for each in text[max(0, offset - offset % 3) : offset + 1])
        params, reason = {
            "a stop token": ({"stop_token_ids": [token]}, ("stop", token)),
            "the end token": ({}, ("stop", None)),
            "the length limit": ({"max_tokens": offset + 1}, ("length", None)),
            "a stop string": ({"stop": [string, "not in the text"], "logprobs": 1}, ("stop", string)),
        }[ending]
        with monkeypatch.context() as patched:
            if ending == "the end token":
                patched.setattr(engine.target, "eos_token_ids", frozenset({token}))
            sequence = _generate(engine, noise_seed, neighbour=True, **params)[0]
        assert sequence.output_token_ids == text[: offset + 1]
        assert (sequence.finish_reason, sequence.stop_reason) == reason
        assert len(sequence.logprobs) == (offset + 1) * ("logprobs" in params)


def test_the_context_limit_cuts_like_the_length_limit(models, noise_seed, text):
    for offset, (drafter, draft) in product(OFFSETS, (("none", None), ("model", models.perfect_draft))):
        engine = engine_over(models.target, draft, drafter, max_model_len=len(PROMPT) + offset + 1)
        sequence = _generate(engine, noise_seed)[0]
        assert sequence.output_token_ids == text[: offset + 1]
        assert sequence.finish_reason == "length"


def test_the_earlier_of_a_stop_string_and_a_stop_token_ends_the_text(engine, noise_seed, text):
    for at_token, at_string in ((3, 5), (5, 3), (4, 4)):
        ends = {"stop_token_ids": [text[at_token]], "stop": [LETTERS[text[at_string]]]}
        sequence = _generate(engine, noise_seed, **ends)[0]
        assert sequence.output_token_ids == text[: min(at_token, at_string) + 1]
        assert sequence.finish_reason == "stop"


def test_an_end_at_the_length_limit_is_a_stop(engine, noise_seed, text):
    for end in ({"stop": [LETTERS[text[6]]]}, {"stop_token_ids": [text[6]]}):
        sequence = _generate(engine, noise_seed, max_tokens=7, **end)[0]
        assert (sequence.output_token_ids, sequence.finish_reason) == (text[:7], "stop")


def test_ignore_eos_goes_on_after_the_models_end_token_but_after_no_stop_token(engine, noise_seed, text, monkeypatch):
    monkeypatch.setattr(engine.target, "eos_token_ids", frozenset({text[3]}))
    assert _generate(engine, noise_seed, ignore_eos=True)[0].output_token_ids == text
    stopped = _generate(engine, noise_seed, ignore_eos=True, stop_token_ids=[text[5]])[0]
    assert stopped.output_token_ids == text[:6]
    asked_for = _generate(engine, noise_seed, ignore_eos=True, stop_token_ids=[text[3]])[0]
    assert (asked_for.output_token_ids, asked_for.stop_reason) == (text[:4], text[3])


def test_no_stop_token_is_emitted_before_min_tokens(engine, noise_seed, models):
    """Half the vocabulary would end the text; the first token after min_tokens is likely to."""
    for min_tokens in OFFSETS:
        params = {"stop_token_ids": list(range(0, 48, 2)), "min_tokens": min_tokens}
        output = _generate(engine, noise_seed, **params)[0].output_token_ids
        assert all(token % 2 == 1 for token in output[:min_tokens])
        assert output == _generate(engine_over(models.target), noise_seed, **params)[0].output_token_ids


def test_a_stop_string_before_min_tokens_does_not_end_the_text(engine, noise_seed, text):
    early, late = LETTERS[text[2]], LETTERS[text[7]]
    sequence = _generate(engine, noise_seed, min_tokens=5, stop=[early, late])[0]
    assert (sequence.output_token_ids, sequence.stop_reason) == (text[:8], late)


@pytest.mark.parametrize("verification", ["coupled", "rejection"])
@pytest.mark.parametrize("offset", OFFSETS)
def test_rounds_are_as_few_as_full_acceptance_allows(models, verification, offset):
    """Greedy, the target as its own draft: five tokens a round, whatever cuts the last round short."""
    engine = engine_over(models.target, models.perfect_draft, "model", verification=verification)
    sequence = engine.generate([PROMPT], SamplingParams(temperature=0, max_tokens=offset + 1))[0]
    assert sequence.num_rounds == -(-(offset + 1) // 5)
    assert sequence.num_accepted_tokens == sequence.num_draft_tokens == offset + 1 - sequence.num_rounds
    check_counts(sequence)


@pytest.mark.parametrize("offset", OFFSETS)
def test_tokens_behind_an_end_are_not_counted_as_accepted(models, noise_seed, text, offset):
    engine = engine_over(models.target, models.perfect_draft, "model", num_speculative_tokens=NUM_SPECULATIVE_TOKENS)
    sequence = _generate(engine, noise_seed, stop=[LETTERS[text[offset]]])[0]
    num_full_rounds, num_in_last = divmod(offset + 1, NUM_SPECULATIVE_TOKENS + 1)
    assert num_rechecks(engine) == 0
    assert sequence.num_rounds == num_full_rounds + (num_in_last > 0)
    assert sequence.num_accepted_tokens == num_full_rounds * NUM_SPECULATIVE_TOKENS + num_in_last
    per_position = [num_full_rounds + (num_in_last > position) for position in range(NUM_SPECULATIVE_TOKENS)]
    assert sequence.accepted_per_position == [count for count in per_position if count]


def test_nothing_is_drafted_behind_a_stop_token(models, noise_seed, text):
    """The draft is cut there before it is verified, so it is not counted as drafted either."""
    engine = engine_over(models.target, models.perfect_draft, "model", num_speculative_tokens=8)
    sequence = _generate(engine, noise_seed, stop_token_ids=[text[2]])[0]
    assert sequence.num_rounds == 1
    assert sequence.num_draft_tokens == sequence.num_accepted_tokens == 3


def test_a_slot_freed_by_an_end_is_given_away_before_the_next_round(models):
    engine = engine_over(models.target, num_slots=2)
    limits = [1, 5, 3, 1, 2]
    sequences = numbered([[3, row] for row in range(5)], [{"max_tokens": limit} for limit in limits])
    engine.submit(sequences)
    rows_of_rounds = []
    while engine.has_work:
        engine.step()
        rows_of_rounds.append(len(engine.lanes[0].running))
    assert rows_of_rounds == [2, 2, 2, 2, 2, 1, 1]
    assert engine.num_running == 0
    assert [len(s.output_token_ids) for s in sequences] == limits
