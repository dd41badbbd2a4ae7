"""Rows that draft less than their engine may, or nothing: they write the same text, and their neighbours draft on."""

import pytest

from decoding import Engine, SamplingParams, Sequence
from tests.decoding.tiny import EVERY_DRAFTER, check_counts, engine_by, outputs, random_prompts, run

PROMPTS = [*random_prompts([7, 1, 12, 3, 25, 9], seed=4), [5, 6, 7, 8, 9] * 5]
LIMITS = [0, None, 1, 0, None, 2, None]
DRAFTS = [kind for kind in EVERY_DRAFTER if kind != "none"]


def _sequences(limits: list[int | None]) -> list[Sequence]:
    params = SamplingParams(max_tokens=24, temperature=0.8, ignore_eos=True)
    return [
        Sequence.create(prompt, params, run_seed=3, row=row, num_speculative_tokens=limit)
        for row, (prompt, limit) in enumerate(zip(PROMPTS, limits, strict=True))
    ]


@pytest.fixture(scope="module")
def plain(models) -> list[list[int]]:
    return outputs(run(engine_by(models, "none"), _sequences([None] * len(PROMPTS))))


@pytest.mark.parametrize("kind", DRAFTS)
def test_a_row_that_limits_its_drafts_writes_the_same_text_and_drafts_no_more_than_that(models, plain, kind):
    engine = engine_by(models, kind, num_speculative_tokens=4, num_slots=4)
    sequences = run(engine, _sequences(LIMITS))
    assert outputs(sequences) == plain
    for sequence, limit in zip(sequences, LIMITS, strict=True):
        check_counts(sequence)
        if limit is not None:
            assert sequence.num_draft_tokens <= limit * sequence.num_rounds
            assert len(sequence.accepted_per_position) <= limit
    assert sum(sequence.num_draft_tokens for sequence in sequences if sequence.num_speculative_tokens is None)


def _watched(engine: Engine, sequences: list[Sequence]) -> int:
    """Compare what each round left of its draft with its counts, and return how many tokens were replaced so."""
    num_seen, num_rejected = dict.fromkeys(sequences, (0, 0)), 0
    engine.submit(sequences)
    while engine.has_work:
        engine.step()
        for sequence in sequences:
            drafted, accepted = sequence.num_draft_tokens, sequence.num_accepted_tokens
            before = num_seen[sequence]
            num_seen[sequence] = (drafted, accepted)
            rejected = sequence.rejected_token_ids
            if (drafted, accepted) != before and not sequence.is_finished:
                assert len(rejected) == drafted - before[0] - (accepted - before[1])
            if rejected:
                assert rejected[0] != sequence.output_token_ids[-1]
                num_rejected += (drafted, accepted) != before
    return num_rejected


@pytest.mark.parametrize("kind", DRAFTS)
def test_a_row_has_the_rest_of_each_draft_that_the_target_has_replaced(models, plain, kind):
    engine = engine_by(models, kind, num_speculative_tokens=4, num_slots=4)
    sequences = _sequences([None] * len(PROMPTS))
    assert _watched(engine, sequences)
    assert outputs(sequences) == plain


def test_an_accepted_draft_leaves_nothing_rejected(models):
    engine = engine_by(models, "perfect_draft", num_speculative_tokens=4)
    assert not _watched(engine, _sequences([None] * len(PROMPTS)))


def test_a_negative_limit_is_refused():
    with pytest.raises(ValueError, match="num_speculative_tokens must not be negative, got -1"):
        Sequence.create([1], SamplingParams(), num_speculative_tokens=-1)
