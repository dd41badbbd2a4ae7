"""Stand-ins that take no time: a target and a drafter under which a round costs what the engine itself does."""

from collections.abc import Sequence as Seq
from itertools import chain

import torch

from decoding.cache.features import FeatureTap
from decoding.cache.kv_cache import KVCache
from decoding.device import to_device
from decoding.drafters.base import Drafter, point_masses
from decoding.network.target import LocalTarget, Target
from decoding.sampling.rows import Rows
from decoding.sampling.verdicts import Draft


class ConstantDrafter(Drafter):
    """A drafter that proposes token 0 a given number of times."""

    def __init__(self, num_draft_tokens: int) -> None:
        self._num_draft_tokens = num_draft_tokens

    def propose(self, rows: Rows) -> Draft:
        return point_masses([[0] * self._num_draft_tokens for _ in rows.sequences], rows.sampling.keys_B.device)


class InstantTarget(LocalTarget):
    """A target that answers in no time; the features that it hands out are zeros."""

    def __init__(self, model: Target, num_slots: int, num_positions: int) -> None:
        self.cache = KVCache(num_slots, num_positions)  # never written
        self.device, self.dtype, self.vocab_size = model.device, model.dtype, model.vocab_size
        self.eos_token_ids: frozenset[int] = frozenset()
        self.close_call, self.hidden_size = model.close_call, model.hidden_size
        self.tap: FeatureTap | None = None
        generator = torch.Generator(model.device).manual_seed(0)  # a host would take seconds for a long vocabulary
        shape = (num_slots, num_positions, model.vocab_size)
        self._logits_BJV = torch.empty(shape, device=model.device, dtype=model.dtype)
        for logits_JV in self._logits_BJV:
            logits_JV.copy_(4 * torch.randn(logits_JV.shape, generator=generator, device=model.device))
        self._logits_BJV[..., 0] = -100.0  # what is drafted is rejected: every round of every row commits one token

    def hand_out(self, tap: FeatureTap | None) -> None:
        self.tap = tap

    def allocate(self, num_slots: int, num_positions: int, num_draft_tokens: int = 0) -> None:
        return None

    @torch.inference_mode()
    def prefill(self, slots: Seq[int], token_ids: Seq[Seq[int]], starts: Seq[int] | None = None) -> None:
        if self.tap is not None:
            tokens_N = to_device(list(chain.from_iterable(token_ids)), self.device, torch.int64)
            self._give(self.tap, slots, starts or [0] * len(slots), list(map(len, token_ids)), tokens_N)

    def forward(
        self,
        starts: Seq[int],
        token_ids_BT: torch.Tensor,
        logits_at_BJ: torch.Tensor,
        slots: Seq[int] | None = None,
        lengths: Seq[int] | None = None,
        *,
        is_prompt: bool = False,
    ) -> torch.Tensor:
        num_rows, width = token_ids_BT.shape
        if self.tap is not None:
            lengths = lengths or [width] * num_rows
            tokens_N = torch.cat([row[:length] for row, length in zip(token_ids_BT, lengths, strict=True)])
            self._give(self.tap, slots or range(num_rows), starts, lengths, tokens_N)
        return self._logits_BJV[:num_rows, :width]

    def _give(
        self, tap: FeatureTap, slots: Seq[int], starts: Seq[int], lengths: Seq[int], tokens_N: torch.Tensor
    ) -> None:
        num_features = len(tap.layer_ids) * self.hidden_size
        stream_NX = torch.zeros(len(tokens_N), num_features, dtype=self.dtype, device=self.device)
        tap.receive(slots, starts, lengths, tokens_N, tap.project(stream_NX))

    def plain_logits(self, token_ids: Seq[int]) -> torch.Tensor:
        return self._logits_BJV[0, 0]
