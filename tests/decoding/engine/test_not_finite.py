"""A row whose numbers are not finite fails alone, the same row under every drafter, and leaves nothing behind."""

import math

import pytest

from decoding import Sequence
from decoding.cache.pages import NoPageError
from decoding.choices import NEED_A_HEAD
from decoding.engine.rounds.commits import Commits
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


@pytest.mark.parametrize("kind", KINDS)
def test_under_rejection_a_row_that_is_not_finite_fails_alone(trio, kind):
    """Slots are reused on the way: the next occupant of a poisoned slot is right, too."""
    for num_slots in (1, 2, 8):
        sequences = run(engine_by(trio, kind, num_slots=num_slots, verification="rejection"), _sequences())
        assert [row for row, s in enumerate(sequences) if s.finish_reason == "error"] == [1, 4, 5]
        assert all("not finite" in sequences[row].error and "bfloat16" in sequences[row].error for row in (1, 4, 5))
        if kind in ("model", *NEED_A_HEAD):
            assert all(sequences[row].num_draft_tokens for row in (0, 2, 3, 6, 7)), "what a slot held spoils no draft"


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


def test_rows_go_on_beside_one_that_is_not_finite_and_finds_no_page_to_be_read_again(trio, monkeypatch):
    def finds_no_page(*_: object) -> None:
        raise NoPageError

    monkeypatch.setattr(Commits, "_score_again", finds_no_page)
    engine, rows = engine_by(trio, "none", num_slots=3), numbered([[POISON, 1, 2], [3, 4], [5, 6]], max_tokens=4)
    engine.submit(rows)
    for _ in range(12):
        engine.step()
    assert [row.is_finished for row in rows] == [False, True, True]


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
