"""Close calls: rows scored alone where rounding could decide, so that ties give the same text for every batch."""

import pytest
import torch

from decoding import SamplingParams, Sequence
from tests.decoding import tiny
from tests.decoding.tiny import (
    EVERY_DRAFTER,
    check_counts,
    engine_over,
    num_rechecks,
    numbered,
    outputs,
    random_prompts,
    run,
)
from tests.pairs_of_values import every_pair

PROMPTS = random_prompts([5, 1, 9, 3, 14, 2, 6, 4], seed=8)


@pytest.fixture(scope="module", params=["duplicated", "nearly duplicated", "all zero"])
def pair(request, tmp_path_factory):
    """A target whose best tokens tie exactly, always; and a draft that breaks the ties its own way."""
    root = tmp_path_factory.mktemp("ties")
    target = tiny.build(tiny.llama_config(), seed=1)
    draft = tiny.noised(target, 0.02)
    with torch.no_grad():
        head = target.get_output_embeddings().weight
        if request.param == "duplicated":
            head[24:] = head[:24]
        elif request.param == "nearly duplicated":  # within rounding: exact ties fall the same way in every batch
            generator = torch.Generator().manual_seed(0)
            head[24:] = head[:24] * (1 + 1e-7 * torch.randn(24, head.shape[1], generator=generator))
        else:
            head.zero_()
    return tiny.loaded(target, root / "target"), tiny.loaded(draft, root / "draft")


def _sequences() -> list[Sequence]:
    params = [
        {"temperature": 0},
        {"temperature": 0, "max_tokens": 12, "repetition_penalty": 1.3, "frequency_penalty": 0.2},
        {"temperature": 0.7, "max_tokens": 15},
        {"temperature": 0, "top_k": 3},
        *({"top_k": 1}, {"top_k": 3}, {"min_p": 1.0}, {"top_p": 0.05}),
    ]
    return numbered(PROMPTS, [{"max_tokens": 18, **fields} for fields in params])


@pytest.fixture(scope="module")
def alone(pair):
    engine = engine_over(pair[0], num_slots=1)
    texts = outputs(run(engine, _sequences()))
    assert num_rechecks(engine) > 0
    return texts


@pytest.mark.parametrize(("drafter", "num_slots", "num_drafted"), every_pair(list(EVERY_DRAFTER), [1, 2, 6], [1, 3, 8]))
def test_tied_tokens_do_not_depend_on_drafter_batch_or_draft_length(pair, alone, drafter, num_slots, num_drafted):
    engine = engine_over(*pair, drafter, num_slots=num_slots, num_speculative_tokens=num_drafted)
    sequences = run(engine, _sequences())
    assert num_rechecks(engine) > 0
    assert outputs(sequences) == alone
    for sequence in sequences:
        check_counts(sequence)


def test_greedy_ties_go_to_the_same_token_as_in_transformers(pair, alone):
    behind = list(PROMPTS[0])
    for token in alone[0]:
        assert token == int(pair[0].plain_logits(behind).argmax())
        behind.append(token)


def test_clear_decisions_are_not_scored_again(models):
    engine = engine_over(models.target, models.good_draft, "model")
    engine.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=15))
    assert num_rechecks(engine) == 0


def test_a_tied_token_is_scored_again_once_and_alone(pair, monkeypatch):
    target, _ = pair
    calls = []
    real = target.plain_logits
    monkeypatch.setattr(target, "plain_logits", lambda token_ids: calls.append(len(token_ids)) or real(token_ids))
    engine = engine_over(target, num_slots=1)
    engine.generate([PROMPTS[0]], SamplingParams(temperature=0, max_tokens=6))
    assert calls == [len(PROMPTS[0]) + index for index in range(6)]


def test_a_row_whose_tie_cannot_be_settled_fails_and_the_others_go_on(pair, alone, monkeypatch):
    target, _ = pair
    real = target.plain_logits
    lost = _sequences()[0].prompt_token_ids

    def not_finite(token_ids):
        logits_V = real(token_ids)
        return logits_V.fill_(float("nan")) if tuple(token_ids[: len(lost)]) == lost else logits_V

    monkeypatch.setattr(target, "plain_logits", not_finite)
    sequences = run(engine_over(target, num_slots=3), _sequences())
    assert sequences[0].finish_reason == "error"
    assert "not finite" in sequences[0].error
    assert outputs(sequences)[1:] == alone[1:]
