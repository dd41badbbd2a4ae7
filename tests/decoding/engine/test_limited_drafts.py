"""A row knows which drafted tokens the target has replaced."""

import pytest

from decoding import Engine, SamplingParams, Sequence
from tests.decoding.tiny import EVERY_DRAFTER, engine_by, numbered, random_prompts

PROMPTS = [*random_prompts([7, 1, 12, 3, 25, 9], seed=4), [5, 6, 7, 8, 9] * 5]
DRAFTS = [kind for kind in EVERY_DRAFTER if kind != "none"]


def _sequences() -> list[Sequence]:
    return numbered(PROMPTS, max_tokens=24, temperature=0.8, ignore_eos=True)


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
def test_a_row_has_the_rest_of_each_draft_that_the_target_has_replaced(models, kind):
    engine = engine_by(models, kind, num_speculative_tokens=4, num_slots=4)
    assert _watched(engine, _sequences())


def test_an_accepted_draft_leaves_nothing_rejected(models):
    engine = engine_by(models, "perfect_draft", num_speculative_tokens=4)
    assert not _watched(engine, _sequences())


def test_a_negative_limit_is_refused():
    with pytest.raises(ValueError, match="num_speculative_tokens must not be negative, got -1"):
        Sequence.create([1], SamplingParams(), num_speculative_tokens=-1)
