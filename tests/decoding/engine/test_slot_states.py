"""After any number of rounds a slot holds what a fresh prefill of its row would, in both models' caches."""

import pytest
import torch

from decoding import Engine, SamplingParams, Sequence
from decoding.drafters.model import ModelDrafter
from tests.decoding import tiny
from tests.decoding.tiny import audit, check_counts, engine_by, num_rechecks, numbered, random_prompts, run
from tests.pairs_of_values import every_pair

LENGTHS = [5, 1, 12, 3, 20, 2, 8, 1, 15, 6]
LIMITS = [9, 3, 14, 1, 22, 6, 2, 17, 11, 5]


def _sequences(**params: object) -> list[Sequence]:
    return numbered(random_prompts(LENGTHS, seed=6), [{"max_tokens": limit} for limit in LIMITS], **params)


KINDS = ["none", "ngram", "good_draft", "perfect_draft"]


@pytest.mark.parametrize("verification", ["coupled", "rejection"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_slots", [3, 10])
def test_every_slot_equals_a_fresh_prefill_after_every_round(models, fresh, kind, verification, num_slots):
    engine = engine_by(models, kind, num_slots=num_slots, verification=verification)
    engine.submit(_sequences())
    while engine.has_work:
        finished = engine.step()
        assert audit(engine, fresh["target"], fresh.get(kind)) <= 1, "all but the bonus token's predecessor is known"
        for sequence in finished:
            check_counts(sequence)


HEAD = random_prompts([36], seed=14)[0]
SHARED = [
    *(HEAD + tail for tail in random_prompts([9, 1, 20, 4], seed=15)),
    *random_prompts([30, 2, 50], seed=16),
    *[HEAD[:17], HEAD, HEAD, HEAD + HEAD[:7]],
]


@pytest.mark.parametrize(("num_slots", "budget", "drafter"), every_pair([1, 3, 8], [1, 7, 64], ["none", "good_draft"]))
def test_slots_equal_a_fresh_prefill_with_chunks_copies_and_swaps(models, fresh, num_slots, budget, drafter):
    engine = engine_by(models, drafter, num_slots=num_slots, max_prefill_tokens=budget)
    swaps = []
    swap = engine.lanes[0].admission._swap
    engine.lanes[0].admission._swap = lambda stray, gap: swaps.append((stray, gap)) or swap(stray, gap)
    sequences = []
    for row, prompt in enumerate(SHARED):
        sequences.append(Sequence.create(prompt, SamplingParams(max_tokens=1 + 5 * row % 14), row=row))
        engine.submit(sequences[-1:])
        if row % 3:
            engine.step()
            assert audit(engine, fresh["target"], fresh.get(drafter)) <= 1
    while engine.has_work:
        engine.step()
        assert audit(engine, fresh["target"], fresh.get(drafter)) <= 1
    assert sum(sequence.num_cached_tokens for sequence in sequences) >= 100
    assert swaps or num_slots == 1


@pytest.mark.parametrize(
    ("num_slots", "num_speculative_tokens", "temperature"), every_pair([1, 3, 10], [1, 5, 8], [0, 1.0])
)
def test_a_draft_that_is_the_target_is_always_accepted(models, num_slots, num_speculative_tokens, temperature):
    """Slots are refilled and moved on the way."""
    engine = engine_by(models, "perfect_draft", num_slots=num_slots, num_speculative_tokens=num_speculative_tokens)
    sequences = _sequences(temperature=temperature)
    for sequence in engine.stream(sequences):
        assert sequence.num_accepted_tokens == sequence.num_draft_tokens
        assert sequence.num_rounds == -(-len(sequence.output_token_ids) // (num_speculative_tokens + 1))
    assert num_rechecks(engine) == 0
    assert sum(s.num_draft_tokens for s in sequences) > 30


@pytest.mark.parametrize("verification", ["coupled", "rejection"])
@pytest.mark.parametrize("seed", range(2))
def test_a_draft_that_is_the_target_is_accepted_after_rounds_without_a_draft(models, seed, verification, monkeypatch):
    tiny.schedule_at_random(monkeypatch, seed)
    engine = engine_by(models, "perfect_draft", num_slots=3, num_speculative_tokens=5, verification=verification)
    for sequence in engine.stream(_sequences(temperature=1.0)):
        assert sequence.num_accepted_tokens == sequence.num_draft_tokens
    assert num_rechecks(engine) == 0


def test_the_check_would_see_a_draft_cache_with_a_hole(models, monkeypatch):
    """The planted bug: after full acceptance the last drafted token is taken for known to the draft."""
    real = ModelDrafter.propose

    def one_too_many(self, rows):
        draft = real(self, rows)
        self.slots.num_known = [n + 1 for n in self.slots.num_known]
        return draft

    monkeypatch.setattr(ModelDrafter, "propose", one_too_many)
    sequences = run(engine_by(models, "perfect_draft", num_slots=1), _sequences(temperature=1.0))
    assert sum(s.num_accepted_tokens for s in sequences) < sum(s.num_draft_tokens for s in sequences)


GARBAGE = 1e4


@torch.inference_mode()
def _fill_unused_positions(engine: Engine) -> None:
    """Huge finite values wherever no running row stands."""
    caches = [engine.target.cache]
    if hasattr(engine.lanes[0].drafter, "model"):
        caches.append(engine.lanes[0].drafter.model.cache)
    for index, cache in enumerate(caches):
        for layer in cache.layers:
            for stored_SPHD in layer.stored():
                for slot in range(cache.num_slots):
                    used = 0
                    if slot < len(engine.lanes[0].running):
                        known = len(engine.lanes[0].running[slot]) - 1
                        used = known if index == 0 else min(known, engine.lanes[0].drafter.slots.num_known[slot])
                    stored_SPHD[slot, used:] = GARBAGE


@pytest.mark.parametrize("kind", KINDS)
def test_huge_values_in_unused_positions_change_nothing(models, kind):
    def texts(with_garbage: bool) -> list[tuple[list[int], int]]:
        engine = engine_by(models, kind, num_slots=4)
        sequences = _sequences()
        engine.submit(sequences)
        while engine.has_work:
            engine.step()
            if with_garbage:
                _fill_unused_positions(engine)
        return [(s.output_token_ids, s.num_accepted_tokens) for s in sequences]

    assert texts(with_garbage=True) == texts(with_garbage=False)
