"""MtpHead: a target's MTP head over slots. Position i of its cache belongs to pair i, in the layers of all modules.

Shapes: B rows, T tokens of each, N pairs or lines in all, V vocabulary, H hidden size.
"""

from collections.abc import Sequence as Seq

import torch
from torch import nn
from torch.nn.functional import embedding

from decoding.device import seconds_of
from decoding.fused.live_weights import LiveWeights
from decoding.heads.mtp.family import Reads
from decoding.heads.mtp.network import MtpModule
from decoding.heads.slot_head import SlotHead
from decoding.network.target import timed_start


class MtpHead(SlotHead):
    """A head that drafts token by token, with its target's embedding, final norm and output layer."""

    def __init__(
        self, modules: Seq[MtpModule], embedding_VH: torch.Tensor, norm: nn.Module, lm_head: nn.Module, num_layers: int
    ) -> None:
        """Take over modules that are loaded; the other parts are those of a target with `num_layers` layers."""
        first = modules[0]
        self.modules, self.reads = modules, "normed"
        self.device, self.dtype, self.hidden_size = first.device, first.dtype, first.hidden_size
        self.layer_ids, self.vocab_size, self.max_positions = (num_layers,), len(embedding_VH), first.max_positions
        self.cache = None
        self._embedding, self._norm, self._lm_head = embedding_VH, norm, lm_head

    reads: Reads

    @property
    def weights(self) -> LiveWeights | None:
        """None: the head belongs to its target, and is replaced with it alone."""
        return None

    def allocate(self, num_slots: int, num_positions: int) -> None:
        self.cache = self.modules[0].new_cache(num_slots, num_positions, 0)

    @torch.inference_mode()
    def project(self, features_NX: torch.Tensor) -> torch.Tensor:
        """Return the target's states as the first module reads them."""
        return self._of_stream(self._norm, features_NX)

    def read(
        self,
        tokens_N: torch.Tensor,
        states_NH: torch.Tensor,
        starts: Seq[int],
        lengths: Seq[int],
        slots: Seq[int],
        *,
        module: int = 0,
        is_wanted: bool = True,
    ) -> torch.Tensor:
        """Read pairs with a module, as `Eagle3Head.read` does; return the stream behind its layers, [N, H]."""
        assert self.cache is not None, "allocate() comes first"
        embedded_NH = embedding(tokens_N, self._embedding)
        return self.modules[module].read(embedded_NH, states_NH, starts, lengths, slots, self.cache)

    @torch.inference_mode()
    def logits(self, stream_NH: torch.Tensor, module: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits [N, 1, V] behind a module's pairs, and the states that the next module takes [N, H]."""
        norm = self.modules[module].final_norm
        return self._lm_head(norm(stream_NH))[:, None], self._of_stream(norm, stream_NH)

    def states(self, stream_NH: torch.Tensor, module: int) -> torch.Tensor:
        """Return the states behind a module's pairs as the next module takes them."""
        return self._of_stream(self.modules[module].final_norm, stream_NH)

    def _of_stream(self, norm: nn.Module, stream_NH: torch.Tensor) -> torch.Tensor:
        normed_NH: torch.Tensor = norm(stream_NH) if self.reads == "normed" else stream_NH
        return normed_NH

    def guesses(self, tokens_BT: torch.Tensor, features_BTX: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
        """Return what the first module predicts behind each pair: behind every position but the first."""
        num_rows, num_pairs = len(tokens_BT), tokens_BT.shape[1] - 1
        lines_NH = self.project(features_BTX[:, :-1].flatten(0, 1))
        self.allocate(num_rows, num_pairs)
        try:
            places = [0] * num_rows, [num_pairs] * num_rows, range(num_rows)
            logits_N1V, _ = self.logits(self.read(tokens_BT[:, 1:].flatten(), lines_NH, *places))
        finally:
            self.release()
        return logits_N1V.argmax(-1).view(num_rows, num_pairs), list(range(1, num_pairs + 1))

    def seconds(self, num_rows: int, num_tokens: int) -> float:
        """Measure a step of `num_rows` rows, as in a draft. The cache is overwritten."""
        assert self.cache is not None
        start = timed_start(self.cache.num_positions, num_tokens)
        tokens_N = torch.zeros(num_rows * num_tokens, dtype=torch.int64, device=self.device)
        states_NH = torch.zeros(len(tokens_N), self.hidden_size, dtype=self.dtype, device=self.device)
        fed = tokens_N, states_NH, [start] * num_rows, [num_tokens] * num_rows, range(num_rows)
        return seconds_of(lambda: self.logits(self.read(*fed)), self.device)
