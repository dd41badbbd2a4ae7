"""Sampling equals transformers' own logits processors, per row, beside rows that use others."""

import random
from collections import Counter

import pytest
import torch
from transformers.generation import logits_process as hf

from decoding import SamplingParams
from decoding.sampling.distribution import SamplingBatch, probabilities, process_logits
from decoding.sampling.token_history import TokenHistory

VOCAB_SIZE = 23
CPU = torch.device("cpu")


def _sampling(params: list[SamplingParams], prompt_lengths: list[int]) -> SamplingBatch:
    stop_ids = [frozenset(p.stop_token_ids) for p in params]
    return SamplingBatch.build(params, [0] * len(params), stop_ids, prompt_lengths, CPU)


def _scores(
    logits_BJV: torch.Tensor, params: list[SamplingParams], texts: list[list[int]], prompt_lengths: list[int]
) -> torch.Tensor:
    """Scores of the last J positions of each text; the texts may differ in length."""
    num_positions = logits_BJV.shape[1]
    width = max(map(len, texts))
    tokens = torch.tensor([text + [VOCAB_SIZE - 1] * (width - len(text)) for text in texts])
    lengths = torch.tensor([[len(text) - num_positions + 1 + j for j in range(num_positions)] for text in texts])
    history = TokenHistory(tokens, torch.tensor(prompt_lengths), lengths)
    return process_logits(logits_BJV, _sampling(params, prompt_lengths), history)


def _oracle(logits_V: torch.Tensor, params: SamplingParams, text: list[int], prompt_length: int) -> torch.Tensor:
    """The same by transformers' processors, in the documented order; presence and frequency in plain Python."""
    tokens, scores = torch.tensor([text]), logits_V[None].clone()
    before = hf.LogitsProcessorList()
    if params.allowed_token_ids is not None:
        before.append(hf.SuppressTokensLogitsProcessor(sorted(set(range(VOCAB_SIZE)) - set(params.allowed_token_ids))))
    if params.bad_words:  # of the output alone, as in vLLM
        words = hf.NoBadWordsLogitsProcessor([list(word) for word in params.bad_words])
        scores = words(tokens[:, prompt_length:], scores)
    if params.logit_bias:
        before.append(hf.SequenceBiasLogitsProcessor([[[token], value] for token, value in params.logit_bias.items()]))
    if params.repetition_penalty != 1:
        before.append(hf.RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    scores = before(tokens, scores)
    for token, count in Counter(text[prompt_length:]).items():
        scores[0, token] -= params.presence_penalty + count * params.frequency_penalty
    after = hf.LogitsProcessorList()
    if params.min_tokens and params.stop_token_ids:
        stop_ids = list(params.stop_token_ids)
        after.append(hf.MinNewTokensLengthLogitsProcessor(prompt_length, params.min_tokens, stop_ids))
    if params.temperature:
        after.append(hf.TemperatureLogitsWarper(float(params.temperature)))
    if params.top_k:
        after.append(hf.TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        after.append(hf.TopPLogitsWarper(float(params.top_p)))
    if params.min_p:
        after.append(hf.MinPLogitsWarper(float(params.min_p)))
    return after(tokens, scores)[0]


FIELDS = {
    "temperature": [0.01, 0.3, 0.7, 1.7, 100.0],
    "top_k": [2, 5, 22, 23, 500],  # 1 is greedy
    "top_p": [1e-6, 0.1, 0.5, 0.9, 0.999],
    "min_p": [0.001, 0.05, 0.5, 1.0],
    "repetition_penalty": [0.5, 1.3, 5.0],
    "presence_penalty": [-1.5, 0.4, 2.0],
    "frequency_penalty": [-0.7, 0.2, 1.9],
    "logit_bias": [{3: 5.0}, {0: -100.0, 7: 100.0, 22: 1.5}],
    "min_tokens": [1, 3, 6],
    "allowed_token_ids": [(0, 5, 22), tuple(range(12))],
    "bad_words": [
        ((7,), (12, 3)),
        tuple((a, 5 * (a % 2) + 1) for a in range(VOCAB_SIZE)),
        tuple((a, b, c) for a in range(VOCAB_SIZE) for b in range(VOCAB_SIZE) for c in (8, 13) if (a + b + c) % 2),
    ],
}
STOP_IDS = (4, 9)


def _random_params(chance: random.Random) -> SamplingParams:
    chosen = {name: chance.choice(values) for name, values in FIELDS.items() if chance.random() < 0.4}
    if chance.random() < 0.15:
        chosen["temperature"] = 0
    return SamplingParams(stop_token_ids=STOP_IDS, **chosen)


def _random_texts(chance: random.Random, num_rows: int) -> tuple[list[list[int]], list[int]]:
    prompt_lengths = [chance.randint(1, 6) for _ in range(num_rows)]
    texts = [[chance.randrange(VOCAB_SIZE) for _ in range(length + chance.randint(4, 9))] for length in prompt_lengths]
    return texts, prompt_lengths


def _assert_equal_to_transformers(params: list[SamplingParams], seed: int, num_positions: int = 3) -> None:
    chance = random.Random(seed)
    texts, prompt_lengths = _random_texts(chance, len(params))
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(len(params), num_positions, VOCAB_SIZE, generator=generator)
    untouched = logits.clone()
    found = _scores(logits, params, texts, prompt_lengths)
    assert torch.equal(logits, untouched)
    for row, (p, text, length) in enumerate(zip(params, texts, prompt_lengths, strict=True)):
        for j in range(num_positions):
            behind = text[: len(text) - num_positions + 1 + j]
            expected = _oracle(logits[row, j], p, behind, length)
            if p.temperature == 0 or p.top_k == 1:  # greedy: nothing is cut, since no cut reaches the best token
                assert found[row, j].argmax() == expected.argmax(), (p, j)
                continue
            assert torch.equal(found[row, j].isinf(), expected.isinf()), (p, j)
            torch.testing.assert_close(found[row, j], expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", FIELDS)
def test_each_field_equals_transformers_beside_rows_that_do_not_use_it(name):
    for value in FIELDS[name]:
        _check_beside_others(name, value)


def _check_beside_others(name: str, value: object) -> None:
    using = SamplingParams(stop_token_ids=STOP_IDS, **{name: value})
    neighbours = [SamplingParams(), SamplingParams(temperature=0), SamplingParams(top_k=3, top_p=0.7, min_p=0.1)]
    _assert_equal_to_transformers([neighbours[0], using, *neighbours[1:], using], seed=0)
    _assert_equal_to_transformers([using], seed=1)


def test_mixed_batches_equal_transformers():
    for seed in range(12):
        chance = random.Random(1000 + seed)
        _assert_equal_to_transformers([_random_params(chance) for _ in range(8)], seed)


def test_a_row_gets_the_same_scores_alone_as_among_others():
    chance = random.Random(3)
    params = [_random_params(chance) for _ in range(10)]
    texts, prompt_lengths = _random_texts(chance, 10)
    logits = 3 * torch.randn(10, 2, VOCAB_SIZE, generator=torch.Generator().manual_seed(3))
    together = _scores(logits, params, texts, prompt_lengths)
    for row in range(10):
        one = slice(row, row + 1)
        alone = _scores(logits[one], params[one], texts[one], prompt_lengths[one])
        assert torch.equal(alone[0], together[row])


def test_padding_of_stop_ids_forbids_nothing():
    params = [SamplingParams(min_tokens=3, stop_token_ids=(1, 2, 3)), SamplingParams(min_tokens=3, stop_token_ids=(5,))]
    found = _scores(torch.zeros(2, 1, VOCAB_SIZE), params, [[1, 2], [1, 2]], [1, 1])
    assert found[1, 0].isinf().nonzero()[:, 0].tolist() == [5]


@pytest.mark.parametrize("cuts", [{}, {"top_k": 3}, {"top_p": 0.2}])
def test_a_greedy_row_is_a_point_mass_on_its_best_token(cuts):
    sampling = [SamplingParams(temperature=0, **cuts)]
    logits = torch.randn(1, 4, VOCAB_SIZE, generator=torch.Generator().manual_seed(0))
    scores = _scores(logits, sampling, [[1, 2, 3, 4]], [1])
    probs = probabilities(scores, _sampling(sampling, [1]))
    assert torch.equal(probs, torch.nn.functional.one_hot(logits.argmax(-1), VOCAB_SIZE).float())


def test_equal_logits_at_the_top_k_border_all_stay():
    logits = torch.tensor([[[3.0, 1.0, 1.0, 1.0, 0.0]]])
    scores = _scores(logits, [SamplingParams(top_k=2)], [[1]], [1])
    assert scores.isfinite().tolist() == [[[True, True, True, True, False]]]


def test_the_most_likely_token_stays_under_every_filter_at_its_strictest():
    strictest = [SamplingParams(top_k=1), SamplingParams(top_p=1e-9), SamplingParams(min_p=1.0)]
    logits = torch.randn(3, 1, VOCAB_SIZE, generator=torch.Generator().manual_seed(0))
    scores = _scores(logits, strictest, [[1]] * 3, [1] * 3)
    likely = probabilities(scores, _sampling(strictest, [1] * 3)) > 0
    assert likely.sum(-1).tolist() == [[1]] * 3
    assert torch.equal(likely.int().argmax(-1), logits.argmax(-1))
    assert torch.equal(scores.argmax(-1), logits.argmax(-1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_processed_in_float32(dtype):
    logits = torch.randn(1, 2, VOCAB_SIZE, generator=torch.Generator().manual_seed(0)).to(dtype)
    params = [SamplingParams(temperature=0.7, top_p=0.9, repetition_penalty=1.2)]
    scores = _scores(logits, params, [[1, 2, 3]], [1])
    assert scores.dtype == torch.float32
    assert torch.equal(scores, _scores(logits.float(), params, [[1, 2, 3]], [1]))


def test_fields_that_no_row_uses_cost_nothing():
    sampling = _sampling([SamplingParams(), SamplingParams(temperature=0)], [1, 1])
    assert [getattr(sampling, name) for name in ("penalties_3B", "biases", "min_length_B")] == [None] * 3
    assert [kind.name for kind in sampling.kinds] == ["open", "greedy"]
    assert [(kind.cuts.top_k_P, kind.cuts.top_p_P, kind.cuts.min_p_P) for kind in sampling.kinds] == [(None,) * 3] * 2
