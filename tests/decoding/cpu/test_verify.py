"""The kernel's verdicts on drafts are those of torch's operations."""

import random

import pytest
import torch

from decoding import SamplingParams
from decoding.cpu.library import library
from decoding.noise import noise_key
from decoding.picked import Picks
from decoding.sampling.distribution import SamplingBatch
from decoding.sampling.rules import verify_coupled
from decoding.sampling.verdicts import Draft

pytestmark = pytest.mark.skipif(library() is None, reason="no C++ compiler here")


def _picks(num_rows: int, num_positions: int, size: float, generator: torch.Generator) -> Picks:
    """Any picks: of few tokens, with scores up to some size, some nearly equal to the second best, some at a border."""
    shape = (num_rows, num_positions)
    best_BJ = size * torch.rand(shape, generator=generator)
    second_BJ = best_BJ - 10 ** (1 - 7 * torch.rand(shape, generator=generator))
    return Picks(
        torch.randint(0, 3, shape, generator=generator),
        best_BJ,
        second_BJ,
        best_BJ * torch.randint(0, 2, shape, generator=generator),  # the rest of the best noised score is noise
        is_finite_BJ=torch.ones(shape, dtype=torch.bool),
        is_at_border_BJ=torch.rand(shape, generator=generator) < 0.1,
    )


@pytest.mark.parametrize("close_call", [0.0, 1e-4, 1e-2, 3.0])
@pytest.mark.parametrize("size", [1.0, 30.0, 1000.0])
def test_verdicts_are_those_of_torch(close_call, size, monkeypatch):
    seen_close, seen_accepted = set(), set()
    for seed in range(60):
        chance, generator = random.Random(seed), torch.Generator().manual_seed(seed)
        num_rows, num_drafted = chance.choice([1, 3, 16]), chance.choice([0, 1, 4, 9])
        params = [SamplingParams(temperature=chance.choice([0, 0.1, 1, 5])) for _ in range(num_rows)]
        keys, nothing = [noise_key(0, row, 0) for row in range(num_rows)], [frozenset[int]()] * num_rows
        sampling = SamplingBatch.build(params, keys, nothing, [1] * num_rows, torch.device("cpu"))
        picks = _picks(num_rows, num_drafted + 1, size, generator)
        drafted_BK = picks.token_ids_BJ[:, :num_drafted].clone()
        drafted_BK[torch.rand(drafted_BK.shape, generator=generator) < 0.2] = 7
        if chance.random() < 0.5:  # not side by side in memory
            drafted_BK = drafted_BK.T.contiguous().T
        draft = Draft(drafted_BK, torch.tensor([chance.randint(0, num_drafted) for _ in range(num_rows)]))
        found = verify_coupled(picks, draft, sampling, close_call)
        with monkeypatch.context() as without:
            without.setenv("DRAY_KERNELS", "off")
            expected = verify_coupled(picks, draft, sampling, close_call)
        for name in vars(expected):
            assert torch.equal(getattr(found, name), getattr(expected, name)), name
        seen_accepted.update(found.num_accepted_B.tolist())
        seen_close.update((found.first_close_call_B < num_drafted + 1).tolist())
    assert seen_accepted >= {0, 1, 2, 3}
    assert (True in seen_close) == (close_call > 0)
