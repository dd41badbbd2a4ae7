"""What bad words and allowed ids forbid is what is written down plainly: word by word, for each row and position."""

import pickle
import random

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding import sampling_params
from decoding.sampling.token_history import ForbiddenTokens, TokenHistory, dead_end
from decoding.sampling_params import BadWordList, SamplingParams
from decoding.sequence import Sequence

CPU = torch.device("cpu")
VOCAB, LENGTH, POSITIONS = 7, 12, 3  # few tokens, so that words are often completed
some_examples = settings(max_examples=40, deadline=None, derandomize=True)
by_chance = st.randoms(use_true_random=True)


def _word(chance: random.Random) -> tuple[int, ...]:
    return tuple(chance.randrange(VOCAB + 1) for _ in range(chance.choice((1, 1, 2, 3, 4, 9))))


def _params(chance: random.Random) -> list[SamplingParams]:
    """Rows of few kinds: some share their parameters, some have equal ones, some have words and lists of their own."""
    kinds = []
    for _ in range(3):
        words = [_word(chance) for _ in range(chance.choice((0, 1, 40)))]
        allowed = chance.choice((None, chance.sample(range(VOCAB), 4)))
        kinds.append(SamplingParams(bad_words=words, allowed_token_ids=allowed))
    rows = [chance.choice(kinds) for _ in range(6)]
    return [pickle.loads(pickle.dumps(p)) if chance.random() < 0.3 else p for p in rows]


def _plainly(params, logits, texts, prompts, lengths) -> torch.Tensor:
    expected = logits.clone()
    for row, own in enumerate(params):
        for place, length in enumerate(lengths[row]):
            output = tuple(texts[row][prompts[row] : length])
            if own.allowed_token_ids is not None:
                expected[
                    row, place, [token for token in range(VOCAB) if token not in own.allowed_token_ids]
                ] = -torch.inf
            for *before, last in own.bad_word_ids:
                if last < VOCAB and len(before) <= len(output) and output[len(output) - len(before) :] == tuple(before):
                    expected[row, place, last] = -torch.inf
    return expected


def _check(forbidden, params, texts, prompts, lengths, noise) -> None:
    logits = torch.randn(len(params), POSITIONS, VOCAB, generator=noise)
    expected = _plainly(params, logits, texts, prompts, lengths)
    if forbidden is None:
        assert torch.equal(expected, logits)
        return
    history = TokenHistory(torch.tensor(texts), torch.tensor(prompts), torch.tensor(lengths))
    assert torch.equal(forbidden.apply(logits, history), expected)


@some_examples
@given(chance=by_chance)
def test_rows_and_some_of_them_lose_the_tokens_that_are_forbidden_word_by_word(chance):
    noise = torch.Generator().manual_seed(chance.randrange(1 << 30))
    params = _params(chance)
    texts = [[chance.randrange(VOCAB) for _ in range(LENGTH)] for _ in params]
    prompts = [chance.randrange(1, 6) for _ in params]
    firsts = [chance.randrange(prompt, LENGTH - POSITIONS + 1) for prompt in prompts]
    lengths = [list(range(first, first + POSITIONS)) for first in firsts]
    forbidden = ForbiddenTokens.build(params, CPU)
    _check(forbidden, params, texts, prompts, lengths, noise)
    if forbidden is None:
        return
    for taken in (chance.sample(range(len(params)), chance.randrange(1, 6)), [0, 0, 3], [5]):
        some = [[values[row] for row in taken] for values in (params, texts, prompts, lengths)]
        part = forbidden.take(taken)
        _check(part, *some, noise)
        if part is not None:
            again = [len(taken) - 1]
            _check(part.take(again), *[[values[-1]] for values in some], noise)


@some_examples
@given(chance=by_chance)
def test_a_row_is_at_its_end_exactly_where_the_words_plainly_leave_no_token(chance):
    words = [(*(chance.randrange(3) for _ in range(chance.randrange(3))), last) for last in (0, 1, 2) for _ in range(4)]
    params = SamplingParams(bad_words=words)
    ends = []
    for _ in range(20):
        output = [chance.randrange(3) for _ in range(chance.randrange(5))]
        sequence = Sequence.create([1], params)
        lasts = {word[-1] for word in words if tuple(output[max(0, len(output) - len(word) + 1) :]) == word[:-1]}
        ends.append(lasts == {0, 1, 2})
        assert (dead_end(sequence, output, 3, ()) is not None) == ends[-1]


def test_equal_words_are_one_list_which_goes_with_its_last_row():
    words = ((1, 2), (3,))
    kept = [SamplingParams(bad_words=[list(word) for word in words]) for _ in range(2)]
    kept.append(pickle.loads(pickle.dumps(kept[0])))
    assert len({id(params.bad_word_list) for params in kept}) == 1
    assert ForbiddenTokens.build(kept, CPU).words.starts == (0, 2)
    assert pickle.loads(pickle.dumps(kept[0].bad_word_list)) is kept[0].bad_word_list

    assert words in sampling_params._KNOWN
    kept.clear()
    assert words not in sampling_params._KNOWN


def test_token_ids_outside_a_vocabulary_are_named_in_their_order():
    assert BadWordList.of([(1, 9), (8,), (2, 3)]).outside(8) == [9, 8]
