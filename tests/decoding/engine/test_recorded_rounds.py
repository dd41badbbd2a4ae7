"""The record of a sample's rounds says what was drafted, and adds up to its text and its counts."""

import pytest

from decoding.sampling.judging import ScoreRequest
from decoding.sequence import Sequence
from tests.decoding.tiny import EVERY_DRAFTER, check_counts, engine_by, numbered, random_prompts

PROMPTS = [*random_prompts([7, 1, 12, 3], seed=4), [5, 6, 7, 8, 9] * 5]
DRAFTERS = [drafter for drafter in EVERY_DRAFTER if drafter != "model"] + ["good_draft"]


def _drafts_of_scored_rounds(engine, monkeypatch: pytest.MonkeyPatch) -> dict[Sequence, list[list[int]]]:
    """Return the drafts that the target gets to score from now on, by sequence."""
    seen: dict[Sequence, list[list[int]]] = {}
    target = engine.lanes[0].target
    score = target.score

    def watching(request: ScoreRequest):
        for sequence, tokens, count in zip(request.rows.sequences, *request.draft_on_host, strict=True):
            seen.setdefault(sequence, []).append(tokens[:count])
        return score(request)

    monkeypatch.setattr(target, "score", watching)
    return seen


@pytest.mark.parametrize("verification", ["coupled", "rejection"])
@pytest.mark.parametrize("kind", DRAFTERS)
def test_recorded_rounds_are_the_drafts_that_were_scored(models, kind, verification, monkeypatch):
    engine = engine_by(models, kind, num_slots=3, num_speculative_tokens=4, verification=verification)
    each = [{"max_tokens": 20}, {"max_tokens": 2}, {"stop_token_ids": tuple(range(24))}, {"temperature": 0}, {}]
    defaults = {"max_tokens": 17, "temperature": 0.7}
    sequences = numbered(PROMPTS, [defaults | own for own in each])
    for sequence in sequences[:-1]:
        sequence.rounds = []
    scored = _drafts_of_scored_rounds(engine, monkeypatch)
    engine.submit(sequences)
    engine.step()
    engine.step()
    engine.evict([sequences[0]])  # a row that loses its slot goes on with its record
    while engine.has_work:
        engine.step()
    for sequence in sequences[:-1]:
        check_counts(sequence)
        place = 0
        for number, (round_, draft) in enumerate(zip(sequence.rounds, scored[sequence], strict=True)):
            accepted = sequence.output_token_ids[place : place + round_.num_accepted]
            assert [*accepted, *round_.rejected_token_ids] == draft, f"round {number}"
            place += round_.num_accepted + 1
        assert place in (len(sequence.output_token_ids), len(sequence.output_token_ids) + 1)
        assert sum(round_.num_accepted for round_ in sequence.rounds) == sequence.num_accepted_tokens
        assert len(sequence.rounds) == sequence.num_rounds
    assert sequences[-1].rounds is None, "rounds are recorded only where a caller asks for them"
