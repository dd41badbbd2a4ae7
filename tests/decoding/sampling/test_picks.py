"""The fast ways to a pick give, bit for bit, what the definition over the whole vocabulary gives."""

import random

import pytest
import torch

from decoding import SamplingParams
from decoding.sampling import picks
from tests.decoding.sampling.cases import LOGITS, PARAMS, VOCAB_SIZES, Case


def _case(logits: str, params: str, vocab_size: int, seed: int = 0) -> Case:
    rows = [SamplingParams(**fields) for fields in PARAMS[params]] * 2
    generator = torch.Generator().manual_seed(seed)
    return Case(LOGITS[logits](len(rows), vocab_size, generator), rows, first_row=100 * seed)


@pytest.fixture(params=[0, 1 << 15], ids=["bounds always", "bounds where they pay"])
def _bounds(request, monkeypatch):
    monkeypatch.setattr(picks, "_DENSE", request.param)


@pytest.mark.usefixtures("_bounds")
@pytest.mark.parametrize("params", PARAMS)
@pytest.mark.parametrize("logits", LOGITS)
def test_picks_are_those_of_the_definition(logits, params):
    for seed, vocab_size in enumerate(VOCAB_SIZES):
        _case(logits, params, vocab_size, seed).check()


@pytest.mark.usefixtures("_bounds")
@pytest.mark.parametrize("seed", range(12))
def test_picks_of_random_mixtures_are_those_of_the_definition(seed):
    chance = random.Random(seed)
    rows = [SamplingParams(**chance.choice(chance.choice(list(PARAMS.values())))) for _ in range(9)]
    generator = torch.Generator().manual_seed(seed)
    logits = chance.choice([0.5, 3.0, 12.0]) * torch.randn(9, 4, chance.choice(VOCAB_SIZES), generator=generator)
    Case(logits, rows, first_row=seed).check()
