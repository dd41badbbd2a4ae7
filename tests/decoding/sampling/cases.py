"""Logits and sampling parameters of many shapes, and the picks from them."""

from dataclasses import dataclass

import torch

from decoding import SamplingParams
from decoding.noise import GumbelNoise, Stream, noise_key
from decoding.picked import Picks
from decoding.sampling.distribution import SamplingBatch
from decoding.sampling.picks import pick_plain, pick_tokens

NEVER = -torch.inf
VOCAB_SIZES = [1, 2, 7, 63, 64, 65, 200, 1000, 4096, 5003]


@dataclass
class Case:
    """Rows with any parameters over logits of any shape."""

    logits_BJV: torch.Tensor
    params: list[SamplingParams]
    first_row: int = 0

    @property
    def sampling(self) -> SamplingBatch:
        keys = [noise_key(3, self.first_row + row, 0) for row in range(len(self.params))]
        nothing = [frozenset()] * len(self.params)
        return SamplingBatch.build(self.params, keys, nothing, [1] * len(self.params), torch.device("cpu"))

    @property
    def noise(self) -> GumbelNoise:
        positions = torch.arange(self.logits_BJV.shape[1]).expand(len(self.params), -1) + 5
        return GumbelNoise.draw(self.sampling.keys_B, positions, self.logits_BJV.shape[-1], Stream.SHARED)

    def picked(self, margin: float = 0.0) -> Picks:
        return pick_tokens(self.logits_BJV, self.sampling, self.noise, margin)

    def check(self) -> None:
        found, expected = self.picked(), pick_plain(self.logits_BJV, self.sampling, self.noise)
        assert not found.is_at_border_BJ.any()
        for name in expected._fields[:5]:
            assert torch.equal(getattr(found, name), getattr(expected, name)), name


LOGITS = {
    "spread": lambda n, v, g: 3 * torch.randn(n, 3, v, generator=g),
    "wide": lambda n, v, g: 40 * torch.randn(n, 3, v, generator=g),
    "flat": lambda n, v, g: 1e-6 * torch.randn(n, 3, v, generator=g),
    "all equal": lambda n, v, g: torch.full((n, 3, v), 1.5),
    "ties": lambda n, v, g: torch.randint(-3, 4, (n, 3, v), generator=g).float(),
    "bfloat16": lambda n, v, g: (3 * torch.randn(n, 3, v, generator=g)).bfloat16(),
    "one token above the rest": lambda n, v, g: torch.zeros(n, 3, v).index_fill_(-1, torch.tensor([v - 1]), 60.0),
    "all forbidden but one": lambda n, v, g: torch.full((n, 3, v), NEVER).index_fill_(-1, torch.tensor([v // 2]), 0.0),
    "half forbidden": lambda n, v, g: torch.randn(n, 3, v, generator=g).index_fill_(-1, torch.arange(0, v // 2), NEVER),
    "descending": lambda n, v, g: -torch.arange(v).float().log1p().expand(n, 3, v).contiguous(),
    "a slice": lambda n, v, g: torch.randn(n, 3, v + 9, generator=g)[..., :v],
}
PARAMS = {
    "open": [{}],
    "greedy": [{"temperature": 0}],
    "cold and hot": [{"temperature": 0.01}, {"temperature": 100.0}],
    "top_k": [{"top_k": 2}, {"top_k": 50}, {"top_k": 2**31 - 1}],
    "top_p": [{"top_p": 0.95, "temperature": 0.8}, {"top_p": 1e-9}, {"top_p": 1 - 1e-7}, {"top_p": 0.5}],
    "min_p": [{"min_p": 1.0}, {"min_p": 0.05}, {"min_p": 1e-9}],
    "all cuts": [{"top_k": 40, "top_p": 0.9, "min_p": 0.01}, {"top_k": 700, "top_p": 0.99}],
    "mixed": [{}, {"temperature": 0}, {"top_k": 1}, {"top_k": 9}, {"top_p": 0.9}, {"min_p": 0.1, "temperature": 2.0}],
}
