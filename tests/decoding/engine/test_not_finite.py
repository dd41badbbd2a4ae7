"""A row whose numbers are not finite fails alone, the same row under every drafter, and leaves nothing behind."""

import math

import pytest
import torch

from decoding import SamplingParams, Sequence
from decoding.drafters import DRAFTERS
from decoding.network.language_model import LanguageModel
from tests.decoding.tiny import (
    build,
    check_counts,
    engine_over,
    llama_config,
    noised,
    outputs,
    random_prompts,
    run,
    save,
)
from tests.pairs_of_values import every_pair

POISON = 40  # feeding this token id gives values that are not finite
CLEAN_IDS = 40  # random prompts below it
KINDS = [*DRAFTERS, "poisoned_draft"]


@torch.no_grad()
def _poison(network, value: float) -> None:
    network.get_input_embeddings().weight[POISON] = value


@pytest.fixture(scope="module", params=[math.nan, math.inf], ids=str)
def trio(request, tmp_path_factory):
    """A poisoned target, a healthy draft and a poisoned draft."""
    root = tmp_path_factory.mktemp("poisoned")
    target = build(llama_config(), seed=1)
    healthy, broken = noised(target, 0.1), noised(target, 0.1)
    _poison(target, request.param)
    _poison(broken, request.param)
    named = {"target": target, "healthy": healthy, "broken": broken}
    return {name: LanguageModel.load(save(network, root / name), "cpu") for name, network in named.items()}


def _engine(trio, kind: str, **options: object):
    draft = trio["broken" if kind == "poisoned_draft" else "healthy"]
    return engine_over(trio["target"], draft, "model" if kind == "poisoned_draft" else kind, **options)


def _sequences(never_draw_it: bool = True) -> list[Sequence]:
    """Rows 1, 4 and 5 are poisoned by their prompts (inside, newest, first), the others are healthy."""
    prompts = random_prompts([6, 5, 1, 9, 4, 2, 7, 3], vocab_size=CLEAN_IDS, seed=9)
    prompts[1][2] = prompts[4][-1] = prompts[5][0] = POISON
    bias = {POISON: -100.0} if never_draw_it else {}
    return [
        Sequence.create(prompt, SamplingParams(max_tokens=12, logit_bias=bias), row=row, tag=row)
        for row, prompt in enumerate(prompts)
    ]


@pytest.mark.parametrize(("kind", "num_slots", "verification"), every_pair(KINDS, [1, 2, 8], ["coupled", "rejection"]))
def test_a_row_that_is_not_finite_fails_alone(trio, models, kind, num_slots, verification):
    """Slots are reused on the way: the next occupant of a poisoned slot is right, too."""
    engine = _engine(trio, kind, num_slots=num_slots, verification=verification)
    sequences = run(engine, _sequences())
    failed = [s.tag for s in sequences if s.finish_reason == "error"]
    assert failed == [1, 4, 5]
    assert all("not finite" in s.error and "bfloat16" in s.error for s in sequences if s.tag in failed)
    if verification == "coupled":
        healthy = run(engine_over(models.target, num_slots=1), _sequences())
        for sequence, expected in zip(sequences, healthy, strict=True):
            if sequence.tag not in failed:
                assert sequence.output_token_ids == expected.output_token_ids
                check_counts(sequence)


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_that_reaches_a_poisonous_token_fails_there_under_every_drafter(trio, kind):
    """The token is drawn now and then, and drafted more often than that: a guess must not fail a row."""
    prompts = random_prompts([5, 3, 8, 1, 2, 6] * 4, vocab_size=CLEAN_IDS, seed=3)
    params = SamplingParams(max_tokens=16, logit_bias={POISON: 1.0})

    def results(engine) -> list[tuple]:
        sequences = engine.generate(prompts, params, seed=4)
        return [(s.finish_reason, s.output_token_ids) for s in sequences]

    expected = results(_engine(trio, "none", num_slots=1))
    assert {reason for reason, _ in expected} == {"error", "length"}
    assert results(_engine(trio, kind, num_slots=3)) == expected


def test_a_draft_that_is_not_finite_drafts_again_in_the_slots_next_text(trio):
    """NaN left in the draft's cache would silence the drafter in that slot for ever."""
    engine = _engine(trio, "poisoned_draft", num_slots=1)
    sequences = _sequences()
    run(engine, sequences)
    for sequence in sequences:
        if sequence.finish_reason != "error":
            assert sequence.num_draft_tokens > 0


def test_a_draft_that_is_not_finite_costs_its_row_the_draft_and_nothing_else(models, tmp_path):
    """The target is healthy; the draft breaks down on some rows, whose slots are moved and refilled."""
    network = build(llama_config(), seed=1)
    _poison(network, math.nan)
    broken = LanguageModel.load(save(network, tmp_path), "cpu")
    expected = outputs(run(engine_over(models.target, num_slots=1), _sequences(never_draw_it=False)))
    for num_slots in (1, 2, 3, 8):
        sequences = run(
            engine_over(models.target, broken, "model", num_slots=num_slots), _sequences(never_draw_it=False)
        )
        assert outputs(sequences) == expected
        for sequence in sequences:
            check_counts(sequence)
            is_poisoned = POISON in sequence.prompt_token_ids
            assert (sequence.num_draft_tokens == 0) if is_poisoned else (sequence.num_accepted_tokens > 0)


@pytest.mark.parametrize("num_slots", [1, 2, 8])
def test_only_rows_that_are_not_finite_themselves_are_scored_again(trio, num_slots, monkeypatch):
    """A poisoned slot is clean for its next occupant, which then costs nothing extra."""
    calls = []
    real = trio["target"].plain_logits
    monkeypatch.setattr(trio["target"], "plain_logits", lambda token_ids: calls.append(token_ids) or real(token_ids))
    engine = _engine(trio, "none", num_slots=num_slots)
    run(engine, _sequences())
    assert len(calls) - engine.num_rechecks == 3
    assert sum(POISON in token_ids for token_ids in calls) == 3
