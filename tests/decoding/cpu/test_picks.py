"""The kernel's picks are, bit for bit, those of the definition over the whole vocabulary."""

import random

import numpy as np
import pytest
import torch

from decoding import SamplingParams
from decoding.cpu.library import library
from decoding.cpu.picks import PickInputs, pick
from decoding.sampling.picks import pick_plain
from tests.decoding.sampling.cases import LOGITS, NEVER, PARAMS, VOCAB_SIZES, Case

FIRST = 5  # the position of a case's first logits
WITHOUT_CUTS = ["open", "greedy", "cold and hot"]
pytestmark = pytest.mark.skipif(library() is None, reason="no C++ compiler here")


def _case(logits: str, params: str, vocab_size: int, seed: int = 0) -> Case:
    rows = [SamplingParams(**fields) for fields in PARAMS[params]] * 2
    generator = torch.Generator().manual_seed(seed)
    return Case(LOGITS[logits](len(rows), vocab_size, generator), rows, first_row=100 * seed)


def _inputs(case: Case, *masks: object) -> PickInputs:
    sampling, lengths_B = case.sampling, torch.full((len(case.params),), 2)
    return PickInputs(sampling.temperature_B, sampling.samples_B, sampling.keys_B, lengths_B, *masks)


def _check(case: Case, *masks: object, allowed: torch.Tensor | None = None) -> None:
    found = pick(case.logits_BJV, _inputs(case, *masks), FIRST - 2)
    assert found is not None
    logits_BJV = case.logits_BJV if allowed is None else torch.where(allowed, case.logits_BJV, NEVER)
    expected = pick_plain(logits_BJV, case.sampling, case.noise)
    assert found.is_at_border_BJ is None
    for name in found._fields[:5]:
        assert torch.equal(getattr(found, name), getattr(expected, name)), name


@pytest.mark.parametrize("params", WITHOUT_CUTS)
@pytest.mark.parametrize("logits", LOGITS)
def test_picks_are_those_of_the_definition(logits, params):
    for seed, vocab_size in enumerate(VOCAB_SIZES):
        _check(_case(logits, params, vocab_size, seed))


@pytest.mark.parametrize("seed", range(4))
def test_picks_of_random_mixtures_are_those_of_the_definition(seed):
    chance = random.Random(seed)
    rows = [SamplingParams(temperature=chance.choice([0, 0.01, 0.3, 1, 1.7, 50])) for _ in range(9)]
    generator = torch.Generator().manual_seed(seed)
    logits = chance.choice([0.5, 3.0, 12.0]) * torch.randn(9, 4, chance.choice(VOCAB_SIZES), generator=generator)
    for dtype in (torch.float32, torch.bfloat16):
        _check(Case(logits.to(dtype), rows, first_row=seed))


@pytest.mark.parametrize("share", ["all", "half", "few", "one"])
@pytest.mark.parametrize("params", WITHOUT_CUTS)
def test_only_tokens_are_picked_that_the_masks_allow(params, share):
    chance = np.random.default_rng(3)
    for seed, vocab_size in enumerate(VOCAB_SIZES):
        case = _case("spread", params, vocab_size, seed)
        num_rows, num_positions, _ = case.logits_BJV.shape
        kept = {"all": 1.0, "half": 0.5, "few": 0.01, "one": 0.0}[share]
        bits = chance.random((num_rows, num_positions, -(-vocab_size // 32) * 32 + 32)) < kept
        bits[..., chance.integers(vocab_size)] = True
        packed_RJW = torch.from_numpy(np.packbits(bits, axis=-1, bitorder="little").view(np.int32))
        allowed_BJV = torch.from_numpy(bits[..., :vocab_size])
        _check(case, packed_RJW, range(num_rows), allowed=allowed_BJV)
        allowed_BJV[0] = True
        _check(case, packed_RJW[1:], range(1, num_rows), allowed=allowed_BJV)


def test_a_logit_that_is_not_finite_counts_where_its_token_is_allowed_alone():
    case = _case("spread", "open", 200)
    nothing_RJW = torch.full((2, 3, 7), -1, dtype=torch.int32)
    for number in (torch.nan, torch.inf):
        logits_BJV = case.logits_BJV.clone()
        logits_BJV[1, 1, 40] = number
        found = pick(logits_BJV, _inputs(case, nothing_RJW, (0, 1)), 0)
        assert found is not None
        assert found.is_finite_BJ.tolist() == [[True] * 3, [True, False, True]]
        masked_RJW = nothing_RJW.clone()
        masked_RJW[1, 1, 1] &= ~(1 << 8)
        found = pick(logits_BJV, _inputs(case, masked_RJW, (0, 1)), 0)
        assert found is not None
        assert found.is_finite_BJ.all()
    no_token = pick(case.logits_BJV, _inputs(case, 0 * nothing_RJW, (0, 1)), 0)
    assert no_token is not None
    assert not no_token.is_finite_BJ.any(), "where no token is allowed, none can be picked"


@pytest.mark.parametrize("temperature", [0.3, 1.0, 7.0])
@pytest.mark.parametrize("size", [0.0, 5.0, 300.0, 1e5])
def test_tokens_whose_noised_scores_differ_in_the_last_bits_alone_are_told_apart_as_by_torch(size, temperature):
    for seed in range(8):
        generator = torch.Generator().manual_seed(seed)
        case = Case(torch.zeros(8, 8, 700), [SamplingParams(temperature=temperature)] * 8, first_row=8 * seed)
        ids_BJM = torch.rand(8, 8, 700, generator=generator).topk(5, -1).indices
        equal_BJM = ((size - case.noise.dense(700)) * temperature).gather(-1, ids_BJM)
        case.logits_BJV = torch.full((8, 8, 700), (size - 200) * temperature).scatter_(-1, ids_BJM, equal_BJM)
        _check(case)


def test_more_near_equals_than_the_kernel_can_list_are_left_to_torch():
    flat = Case(torch.randn(2, 1, 3000) * 1e3, [SamplingParams(), SamplingParams(temperature=0.01)])
    assert pick(flat.logits_BJV, _inputs(flat), FIRST - 2) is not None
    near = Case(1e8 + 10 * torch.randn(1, 1, 3000), [SamplingParams()])
    assert pick(near.logits_BJV, _inputs(near), FIRST - 2) is None


def test_scores_that_overflow_are_left_to_torch():
    large = Case(torch.full((1, 1, 100), -3e38), [SamplingParams(temperature=0.01)])
    assert pick(large.logits_BJV, _inputs(large), FIRST - 2) is None


def test_logits_of_other_types_and_masks_with_too_few_bits_are_left_to_torch():
    case = _case("spread", "open", 200)
    assert pick(case.logits_BJV.half(), _inputs(case), 0) is None
    assert pick(case.logits_BJV.transpose(1, 2), _inputs(case), 0) is None
    assert pick(case.logits_BJV, _inputs(case, torch.zeros(2, 3, 6, dtype=torch.int32), (0, 1)), 0) is None


def test_without_the_kernels_nothing_is_picked(monkeypatch):
    case = _case("spread", "open", 200)
    monkeypatch.setenv("DRAY_KERNELS", "off")
    assert pick(case.logits_BJV, _inputs(case), 0) is None
