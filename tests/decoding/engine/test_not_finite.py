"""A row whose numbers are not finite fails alone, the same row under every drafter, and leaves nothing behind."""

import math

import pytest

from decoding import SamplingParams, Sequence
from tests.decoding import tiny
from tests.decoding.tiny import (
    EVERY_DRAFTER,
    POISON,
    check_counts,
    engine_by,
    engine_over,
    numbered,
    outputs,
    random_prompts,
    run,
)
from tests.pairs_of_values import every_pair

KINDS = [*EVERY_DRAFTER, "poisoned_draft"]


@pytest.fixture(scope="module", params=[math.nan, math.inf], ids=str)
def trio(request, tmp_path_factory):
    return tiny.poisoned_models(tmp_path_factory.mktemp("poisoned"), request.param)


def _sequences(never_draw_it: bool = True) -> list[Sequence]:
    """Rows 1, 4 and 5 are poisoned by their prompts (inside, newest, first), the others are healthy."""
    prompts = random_prompts([6, 5, 1, 9, 4, 2, 7, 3], vocab_size=POISON, seed=9)
    prompts[1][2] = prompts[4][-1] = prompts[5][0] = POISON
    bias = {POISON: -100.0} if never_draw_it else {}
    return numbered(prompts, max_tokens=12, logit_bias=bias)


@pytest.mark.parametrize(("kind", "num_slots", "verification"), every_pair(KINDS, [1, 2, 8], ["coupled", "rejection"]))
def test_a_row_that_is_not_finite_fails_alone(trio, models, kind, num_slots, verification):
    """Slots are reused on the way: the next occupant of a poisoned slot is right, too."""
    engine = engine_by(trio, kind, num_slots=num_slots, verification=verification)
    sequences = run(engine, _sequences())
    assert [row for row, s in enumerate(sequences) if s.finish_reason == "error"] == [1, 4, 5]
    assert all("not finite" in sequences[row].error and "bfloat16" in sequences[row].error for row in (1, 4, 5))
    if verification == "coupled":
        healthy = run(engine_over(models.target, num_slots=1), _sequences())
        for sequence, expected in zip(sequences, healthy, strict=True):
            if sequence.finish_reason != "error":
                assert sequence.output_token_ids == expected.output_token_ids
                check_counts(sequence)


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_that_reaches_a_poisonous_token_fails_there_under_every_drafter(trio, kind):
    """The token is drawn now and then, and drafted more often than that: a guess must not fail a row."""
    prompts = random_prompts([5, 3, 8, 1, 2, 6] * 4, vocab_size=POISON, seed=3)
    params = SamplingParams(max_tokens=16, logit_bias={POISON: 1.0})

    def results(engine) -> list[tuple]:
        sequences = engine.generate(prompts, params, seed=4)
        return [(s.finish_reason, s.output_token_ids) for s in sequences]

    expected = results(engine_by(trio, "none", num_slots=1))
    assert {reason for reason, _ in expected} == {"error", "length"}
    assert results(engine_by(trio, kind, num_slots=3)) == expected


def test_a_draft_that_is_not_finite_drafts_again_in_the_slots_next_text(trio):
    """NaN left in the draft's cache would silence the drafter in that slot for ever."""
    for sequence in run(engine_by(trio, "poisoned_draft", num_slots=1), _sequences()):
        if sequence.finish_reason != "error":
            assert sequence.num_draft_tokens > 0


def test_a_draft_that_is_not_finite_costs_its_row_the_draft_and_nothing_else(trio, models):
    """The target is healthy; the draft breaks down on some rows, whose slots are moved and refilled."""
    expected = outputs(run(engine_over(models.target, num_slots=1), _sequences(never_draw_it=False)))
    for num_slots in (1, 2, 3, 8):
        engine = engine_over(models.target, trio.target.share(), "model", num_slots=num_slots)
        sequences = run(engine, _sequences(never_draw_it=False))
        assert outputs(sequences) == expected
        for sequence in sequences:
            check_counts(sequence)
            is_poisoned = POISON in sequence.prompt_token_ids
            assert (sequence.num_draft_tokens == 0) if is_poisoned else (sequence.num_accepted_tokens > 0)


@pytest.mark.parametrize("num_slots", [1, 2, 8])
def test_only_rows_that_are_not_finite_themselves_are_scored_again(trio, num_slots, monkeypatch):
    """A poisoned slot is clean for its next occupant, which then costs nothing extra."""
    calls = []
    real = trio.target.plain_logits
    monkeypatch.setattr(trio.target, "plain_logits", lambda token_ids: calls.append(token_ids) or real(token_ids))
    engine = engine_by(trio, "none", num_slots=num_slots)
    run(engine, _sequences())
    assert len(calls) - tiny.num_rechecks(engine) == 3
    assert sum(POISON in token_ids for token_ids in calls) == 3
