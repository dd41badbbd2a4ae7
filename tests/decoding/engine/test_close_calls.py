"""Close calls: rows scored alone where rounding could decide, so that ties give the same text for every batch."""

import pytest

from decoding import SamplingParams
from tests.decoding import tiny
from tests.decoding.tiny import (
    engine_over,
    num_rechecks,
    random_prompts,
    run,
)
from tests.worlds.rows import undecided
from tests.worlds.text_world import TextWorld


@pytest.fixture(scope="module", params=["duplicated", "nearly duplicated", "all zero"])
def world(request, tmp_path_factory) -> TextWorld:
    """A target whose best tokens tie, always."""
    return TextWorld(tiny.tied_models(tmp_path_factory.mktemp("tied"), request.param), undecided)


def test_greedy_ties_go_to_the_same_token_as_in_transformers(world):
    engine = engine_over(world.models.target, num_slots=1)
    greedy, *_ = world.check(engine)
    assert num_rechecks(engine) > 0
    behind = list(greedy.prompt_token_ids)
    for token in greedy.output_token_ids:
        assert token == int(world.models.target.plain_logits(behind).argmax())
        behind.append(token)


def test_clear_decisions_are_not_scored_again(models):
    engine = engine_over(models.target, models.good_draft, "model")
    engine.generate(random_prompts([5, 1, 9, 3, 14]), SamplingParams(temperature=0, max_tokens=15))
    assert num_rechecks(engine) == 0


def test_a_tied_token_is_scored_again_once_and_alone(world, monkeypatch):
    target, (prompt,) = world.models.target, random_prompts([5], seed=8)
    calls = []
    real = target.plain_logits
    monkeypatch.setattr(target, "plain_logits", lambda token_ids: calls.append(len(token_ids)) or real(token_ids))
    engine = engine_over(target, num_slots=1)
    engine.generate([prompt], SamplingParams(temperature=0, max_tokens=6))
    assert calls == [len(prompt) + index for index in range(6)]


def test_a_row_whose_tie_cannot_be_settled_fails_and_the_others_go_on(world, monkeypatch):
    target, real, lost = world.models.target, world.models.target.plain_logits, world.rows()[0].prompt_token_ids
    assert world.alone, "before anything is patched"

    def not_finite(token_ids):
        logits_V = real(token_ids)
        return logits_V.fill_(float("nan")) if tuple(token_ids[: len(lost)]) == lost else logits_V

    monkeypatch.setattr(target, "plain_logits", not_finite)
    sequences = run(engine_over(target, num_slots=3), world.rows())
    assert sequences[0].finish_reason == "error"
    assert "not finite" in sequences[0].error
    world.compare(sequences[1:])
