"""The fast ways to a pick give, bit for bit, what the definition over the whole vocabulary gives."""

import random

import pytest
import torch

from decoding import SamplingParams
from decoding.sampling import picks
from tests.decoding.sampling.cases import LOGITS, PARAMS, VOCAB_SIZES, Case

over_bounds = pytest.mark.parametrize("dense", [0, 1 << 15], ids=["bounds always", "bounds where they pay"])


@over_bounds
@pytest.mark.parametrize("logits", LOGITS)
def test_picks_are_those_of_the_definition(logits, dense, monkeypatch):
    """With each kind of parameters over every other vocabulary, so that each meets each in some of these tests."""
    monkeypatch.setattr(picks, "_DENSE", dense)
    start = list(LOGITS).index(logits) + bool(dense)
    for number, fields in enumerate(PARAMS.values()):
        rows = [SamplingParams(**each) for each in fields] * 2
        for seed in range((start + number) % 2, len(VOCAB_SIZES), 2):
            generator = torch.Generator().manual_seed(seed)
            Case(LOGITS[logits](len(rows), VOCAB_SIZES[seed], generator), rows, first_row=100 * seed).check()


@over_bounds
def test_picks_of_random_mixtures_are_those_of_the_definition(dense, monkeypatch):
    monkeypatch.setattr(picks, "_DENSE", dense)
    for seed in range(12):
        chance, generator = random.Random(seed), torch.Generator().manual_seed(seed)
        rows = [SamplingParams(**chance.choice(chance.choice(list(PARAMS.values())))) for _ in range(9)]
        logits = chance.choice([0.5, 3.0, 12.0]) * torch.randn(9, 4, chance.choice(VOCAB_SIZES), generator=generator)
        Case(logits, rows, first_row=seed).check()
