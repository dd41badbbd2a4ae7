"""Each loss is what its definition says, computed in float64 with plain loops."""

import math

import pytest
import torch

from tests.pairs_of_values import every_pair
from training.learners.loss_names import LOSSES
from training.learners.losses import TargetLaw, scaled, token_losses

NUM_TOKENS, VOCAB_SIZE = 6, 11
KNOWN = [1, 2, 5, 7, 10]


def _law(logits: list[float], temperature: float) -> list[float]:
    powers = [math.exp(each / (temperature or 1.0)) for each in logits]
    return [power / sum(powers) for power in powers]


def _definition(name: str, progress: float, q: list[float], p: list[float], own: int) -> float:
    if name == "ce":
        return 0.0 if own < 0 else -math.log(q[own])
    if name == "tv" or (name == "kl_tv" and progress >= 0.8):
        return 0.5 * sum(abs(a - b) for a, b in zip(p, q, strict=True))
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


@pytest.mark.parametrize(
    ("name", "progress", "temperature", "known"),
    every_pair(list(LOSSES), [0.0, 0.79, 0.8], [0.0, 0.8, 2.0], [None, KNOWN]),
)
def test_a_loss_is_its_definition(name: str, progress: float, temperature: float, known: list[int] | None) -> None:
    generator = torch.Generator().manual_seed(1)
    ids = known or list(range(VOCAB_SIZE))
    target_NV = torch.randn(NUM_TOKENS, VOCAB_SIZE, generator=generator) * 3
    draft_ND = torch.randn(NUM_TOKENS, len(ids), generator=generator) * 3
    own = [index % (len(ids) + 1) - 1 for index in range(NUM_TOKENS)]
    temperatures_N = torch.full((NUM_TOKENS,), temperature)
    law = TargetLaw.of(target_NV, temperatures_N, None if known is None else torch.tensor(known))
    losses_N = token_losses(name, scaled(draft_ND, temperatures_N), law, torch.tensor(own), progress)
    for index in range(NUM_TOKENS):
        whole = _law(target_NV[index].tolist(), temperature)
        inside = sum(whole[token] for token in ids)
        p = [whole[token] / inside for token in ids]
        q = _law(draft_ND[index].tolist(), temperature)
        assert losses_N[index].item() == pytest.approx(
            _definition(name, progress, q, p, own[index]), rel=1e-4, abs=1e-6
        )
        assert law.outside_N[index].item() == pytest.approx(1 - inside, abs=1e-5)
        assert int(law.best_N[index]) == max(range(VOCAB_SIZE), key=whole.__getitem__)


def test_a_token_that_the_target_rules_out_costs_a_finite_loss() -> None:
    target_NV = torch.tensor([[0.0, 1.0, float("-inf")]])
    law = TargetLaw.of(target_NV, torch.ones(1))
    draft_ND = torch.zeros(1, 3, requires_grad=True)
    token_losses("kl", draft_ND, law, torch.tensor([1]), 0.0).sum().backward()
    assert draft_ND.grad is not None
    assert draft_ND.grad.isfinite().all()
