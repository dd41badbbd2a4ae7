"""The last token that two rows share is read again, in target and draft, if a drafter reads the target's features.

What such a drafter keeps of position i follows from the features there and from the token at i + 1. Two rows that share
tokens 0..s-1 have the entries 0..s-2 in common, and of s-1 only the features, which nothing keeps.
"""

from collections.abc import Sequence as Seq

import pytest
import torch

from decoding import Engine, EngineOptions, SamplingParams, Sequence
from decoding.cache.features import FeatureTap
from decoding.drafters.base import NoDrafter
from decoding.drafters.hybrid import HybridDrafter
from decoding.drafters.lookups.suffix import SuffixDrafter
from decoding.drafters.model import ModelDrafter
from decoding.network.language_model import LanguageModel
from tests.decoding import tiny
from tests.decoding.engine.test_admission import HEAD, Reads
from tests.decoding.tapped import expected
from tests.decoding.tiny import numbered, outputs, random_prompts, run
from tests.worlds.rows import shared

LAYERS = (1,)


class Pairs(NoDrafter):
    """Keeps the pairs of each row as a head does, and compares them with the row whenever it is admitted."""

    def __init__(self, target: LanguageModel) -> None:
        self._target = target
        self.num_checked = 0
        self.begun: list[int] = []
        self._features: dict[int, dict[int, torch.Tensor]] = {}  # by slot and position
        self._pairs: dict[int, dict[int, tuple[torch.Tensor, int]]] = {}

    @property
    def tap(self) -> FeatureTap:
        return FeatureTap(LAYERS, lambda stream_NX: stream_NX, self._receive)

    def _receive(
        self, slots: Seq[int], starts: Seq[int], lengths: Seq[int], tokens_N: torch.Tensor, features_NH: torch.Tensor
    ) -> None:
        lines = iter(zip(tokens_N.tolist(), features_NH, strict=True))
        for slot, start, length in zip(slots, starts, lengths, strict=True):
            features, pairs = self._features.setdefault(slot, {}), self._pairs.setdefault(slot, {})
            for position in range(start, start + length):
                token, features[position] = next(lines)
                if position - 1 in features:
                    pairs[position - 1] = features[position - 1], token

    def begin(self, slot: int, donor: int | None, num_shared: int) -> None:
        self.begun.append(num_shared)
        kept = {} if donor is None else self._pairs.get(donor, {})
        self._pairs[slot] = {position: pair for position, pair in kept.items() if position < num_shared}
        self._features[slot] = {}

    def admit(self, slots: Seq[int], sequences: Seq[Sequence]) -> None:
        for slot, sequence in zip(slots, sequences, strict=True):
            tokens = sequence.token_ids
            for position, right in enumerate(expected(self._target.network, tokens[:-2], LAYERS) if tokens[2:] else ()):
                found, partner = self._pairs[slot][position]
                assert partner == tokens[position + 1]
                torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-4)
                self.num_checked += 1

    def swap(self, first: int, second: int) -> None:
        for table in (self._features, self._pairs):
            table[first], table[second] = table.get(second, {}), table.get(first, {})


def engine_with(models, drafter, *, num_slots: int = 3, budget: int = 512) -> Engine:
    options = EngineOptions(num_slots=num_slots, max_model_len=80, max_prefill_tokens=budget, drafter="none")
    return Engine([(models.target, drafter)], options, 80)


@pytest.fixture(autouse=True)
def _tap_taken_off(models):
    yield
    models.target.hand_out(None)


@pytest.mark.parametrize(("num_slots", "budget"), [(1, 7), (3, 1), (8, 64), (3, 512)])
def test_every_row_has_its_own_pairs_and_the_same_text(models, num_slots, budget):
    plain = run(engine_with(models, NoDrafter(), num_slots=num_slots, budget=budget), shared())
    drafter = Pairs(models.target)
    found = run(engine_with(models, drafter, num_slots=num_slots, budget=budget), shared())
    assert outputs(found) == outputs(plain)
    assert drafter.num_checked > 300
    assert 60 < sum(s.num_cached_tokens for s in found) < sum(s.num_cached_tokens for s in plain)


@pytest.mark.parametrize("num_slots", [1, 3])
@pytest.mark.parametrize("other", [[*HEAD, 1, 2, 3], HEAD, HEAD[:20]], ids=["a head", "the whole prompt", "a part"])
def test_one_token_less_is_copied_and_read_again(models, num_slots, other, monkeypatch):
    """Into another slot, and where a row takes over a free one."""
    params, rests = SamplingParams(temperature=0, max_tokens=4), []
    for reads in (False, True):
        drafter = Pairs(models.target) if reads else NoDrafter()
        engine = engine_with(models, drafter, num_slots=num_slots)
        (first,) = run(engine, [Sequence.create([*HEAD, 9, 9], params)])
        assert first.num_cached_tokens == 0
        copies, copy = [], models.target.cache.copy
        monkeypatch.setattr(models.target.cache, "copy", lambda *a, copy=copy, to=copies: to.append(a[2]) or copy(*a))
        target = Reads(monkeypatch, models.target)
        (second,) = run(engine, [Sequence.create(other, params)])
        rests.append((second.num_cached_tokens, second.output_token_ids, target.num_tokens))
        assert not copies or copies == [second.num_cached_tokens]
        if reads:
            assert drafter.begun == [0, second.num_cached_tokens]
    (num_cached, text, num_read), (num_cached_again, text_again, num_read_again) = rests
    assert (num_cached_again, num_read_again) == (num_cached - 1, num_read + 1)
    assert text_again == text


def test_rows_that_share_one_token_share_nothing(models):
    engine = engine_with(models, Pairs(models.target))
    params = SamplingParams(temperature=0, max_tokens=3)
    assert [row.num_cached_tokens for row in run(engine, numbered([[1, 2, 3], [1, 4, 5]], max_tokens=3))] == [0, 0]
    assert [row.num_cached_tokens for row in run(engine, [Sequence.create([1, 2, 7], params)])] == [1]


def test_samples_of_a_long_prompt_wait_for_the_first_and_read_one_token_each(models, monkeypatch):
    target = Reads(monkeypatch, models.target)
    drafter = Pairs(models.target)
    (prompt,) = random_prompts([50], seed=3)
    engine = engine_with(models, drafter, num_slots=8, budget=7)
    sequences = engine.generate([prompt], SamplingParams(max_tokens=6, n=8))
    assert sorted(sequence.num_cached_tokens for sequence in sequences) == [0] + [48] * 7
    assert target.num_tokens == 49 + 7
    assert sorted(drafter.begun) == [0] + [48] * 7


def test_samples_of_a_short_prompt_do_not_wait_since_each_needs_a_forward(models, monkeypatch):
    target = Reads(monkeypatch, models.target)
    engine = engine_with(models, Pairs(models.target), num_slots=4)
    sequences = engine.generate([HEAD[:9]], SamplingParams(max_tokens=3, n=4))
    assert [sequence.num_cached_tokens for sequence in sequences] == [0] * 4
    assert len(target.calls) == 1


def test_a_hybrid_reads_features_if_its_model_does(models):
    draft = ModelDrafter(models.good_draft, tiny.VOCAB_SIZE, 3, 80)
    assert HybridDrafter(SuffixDrafter(), draft).tap is None
    assert HybridDrafter(SuffixDrafter(), Pairs(models.target)).tap is not None


def test_the_check_would_see_a_copy_that_is_one_token_too_long(models, monkeypatch):
    monkeypatch.setattr(Pairs, "num_read_again", 0)
    engine = engine_with(models, Pairs(models.target))
    with pytest.raises((AssertionError, KeyError)):
        run(engine, shared())
