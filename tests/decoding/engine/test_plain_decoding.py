"""No drafter is plain decoding: a target forward and a token a round, and nothing else."""

import pytest

from decoding import SamplingParams
from decoding.choices import DRAFTERS
from tests.decoding.tiny import engine_over, numbered, random_prompts

PROMPTS = random_prompts([5, 1, 9], seed=2)


@pytest.fixture
def forwards(monkeypatch, models):
    """How many tokens a row each forward of each model had, in order; the forwards themselves are real."""
    calls: dict[str, list[int]] = {"target": [], "draft": []}

    def count(model, name):
        real = model.forward

        def forward(starts, token_ids_BT, *others, **named):
            calls[name].append(token_ids_BT.shape[1])
            return real(starts, token_ids_BT, *others, **named)

        monkeypatch.setattr(model, "forward", forward)

    count(models.target, "target")
    count(models.good_draft, "draft")
    return calls


def test_without_a_drafter_a_round_is_one_forward_of_one_token(models, forwards):
    engine = engine_over(models.target, models.good_draft, "none", num_slots=3)
    sequences = engine.generate(PROMPTS, SamplingParams(max_tokens=10))
    prefill, *rounds = forwards["target"]
    assert prefill == 8
    assert rounds == [1] * 10
    assert forwards["draft"] == []
    for sequence in sequences:
        assert (sequence.num_rounds, sequence.num_draft_tokens, sequence.num_accepted_tokens) == (10, 0, 0)
        assert sequence.accepted_per_position == []


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_round_is_one_target_forward_whatever_drafts(models, forwards, drafter):
    engine = engine_over(models.target, models.good_draft, drafter, num_slots=3)
    sequences = engine.generate(PROMPTS, SamplingParams(max_tokens=10))
    num_rounds = max(sequence.num_rounds for sequence in sequences)
    assert len(forwards["target"]) == 1 + num_rounds
    assert bool(forwards["draft"]) == (drafter in ("model", "hybrid"))


def test_a_drafted_token_costs_one_draft_forward(models, forwards):
    engine = engine_over(models.target, models.good_draft, "model", num_slots=1, num_speculative_tokens=4)
    engine.generate([PROMPTS[0]], SamplingParams(max_tokens=5))
    assert forwards["draft"][:5] == [4, 1, 1, 1, 1]


def test_the_last_token_of_a_text_is_not_drafted_for(models, forwards):
    """A round adds a token to what it accepts: with one token left there is nothing to draft."""
    engine = engine_over(models.target, models.good_draft, "model", num_slots=1)
    sequence = engine.generate([PROMPTS[0]], SamplingParams(max_tokens=1))[0]
    assert (sequence.num_rounds, sequence.num_draft_tokens) == (1, 0)
    assert forwards["draft"] == [4]  # its prefill


def test_a_prompt_of_one_token_needs_no_prefill(models, forwards):
    engine_over(models.target, num_slots=1).generate([[7]], SamplingParams(max_tokens=2))
    assert forwards["target"] == [1, 1]


def test_a_row_beyond_the_drafts_context_does_not_widen_the_others_drafting(models, forwards, monkeypatch):
    monkeypatch.setattr(models.good_draft, "max_positions", 20)
    engine = engine_over(models.target, models.good_draft, "model", num_slots=2)
    engine.submit(numbered([[5] * 40, [6, 7]], max_tokens=12, ignore_eos=True))
    engine.step()
    forwards["draft"].clear()
    for _ in range(3):
        engine.step()
    assert forwards["draft"]
    assert max(forwards["draft"]) <= 2
