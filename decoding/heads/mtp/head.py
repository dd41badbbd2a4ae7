"""MtpHead: a target's MTP head over slots. Position i of its cache belongs to pair i, in the layers of all modules.

Shapes: N pairs, V vocabulary, X or H hidden size.
"""

from collections.abc import Sequence as Seq
from typing import Any

import torch
from torch import nn

from decoding.fused.linear import embedded
from decoding.fused.live_weights import LiveWeights
from decoding.heads.eagle3_head import Eagle3Head, Places
from decoding.heads.mtp.family import Reads
from decoding.heads.mtp.network import MtpModule


class MtpHead(Eagle3Head):
    """A head that reads pairs, as an EAGLE-3 head does, with its target's embedding, final norm and output layer."""

    def __init__(
        self, modules: Seq[MtpModule], embedding_VH: Any, norm: nn.Module, lm_head: Any, num_layers: int
    ) -> None:
        """Take over modules that are loaded; the other parts are those of a target with `num_layers` layers."""
        first = modules[0]
        self.modules, self.layer_ids = modules, (num_layers,)
        self.reads: Reads = "normed"
        self.device, self.dtype, self.hidden_size = first.device, first.dtype, first.hidden_size
        self.vocab_size, self.max_positions, self.cache = lm_head.out_features, first.max_positions, None
        self._embedding, self._norm_of_target, self._lm_head = embedding_VH, norm, lm_head

    @property
    def weights(self) -> LiveWeights:
        """The weights of all modules. They belong to the target, and are not replaced in use."""
        return LiveWeights(nn.ModuleList(module.network for module in self.modules))

    def allocate(self, num_slots: int, num_positions: int) -> None:
        self.cache = self.modules[0].new_cache(num_slots, num_positions, 0)

    @property
    def takes_plans(self) -> bool:
        return False  # the modules are transformers' own code

    def project(self, features_NX: torch.Tensor) -> torch.Tensor:
        return self.states(features_NX)

    @torch.inference_mode()
    def read(
        self,
        tokens_N: torch.Tensor,
        states_NH: torch.Tensor,
        places: Places,
        *,
        is_wanted: bool = True,
        module: int = 0,
    ) -> torch.Tensor:
        """Read pairs with a module; return the residual stream behind its layers, [N, H], wanted or not."""
        assert self.cache is not None, "allocate() comes first"
        embedded_NH = embedded(tokens_N, self._embedding)
        return self.modules[module].read(embedded_NH, states_NH, places, self.cache)

    @torch.inference_mode()
    def logits(self, states_NH: torch.Tensor, module: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits [N, 1, V] by the stream behind a module, and the states that the next one takes [N, H]."""
        logits_NV = self._lm_head(self.modules[module].final_norm(states_NH))
        return logits_NV[:, None], self.states(states_NH, module)

    @torch.inference_mode()
    def states(self, stream_NX: torch.Tensor, module: int | None = None) -> torch.Tensor:
        """Return the states of a module, or of the target, as the next module takes them."""
        norm = self._norm_of_target if module is None else self.modules[module].final_norm
        state_NH: torch.Tensor = norm(stream_NX) if self.reads == "normed" else stream_NX
        return state_NH
