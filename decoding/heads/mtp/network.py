"""MtpModule: one module of an MTP head, with the target's own layers of transformers, over slots.

Shapes: N pairs of all rows, H hidden size.
"""

from collections.abc import Sequence as Seq
from copy import deepcopy
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.utils import logging as transformers_logging

from decoding.cache.kv_cache import KVCache
from decoding.cache.plan import Packing
from decoding.checkpoint.layer_subset import LayerRange, layers_class
from decoding.checkpoint.supported import NETWORK_FAILURES, in_one_line
from decoding.fused.packed_linear import pack, pack_linears, plain_linear
from decoding.heads.mtp.files import OwnHead
from decoding.network.slot_network import SlotNetwork


class MtpModule(SlotNetwork):
    """A module whose weights are loaded. Its layers have numbers of their own in the cache of all modules."""

    layers: LayerRange

    def __init__(self, network: PreTrainedModel, head: OwnHead, number: int, ends: dict[str, torch.Tensor]) -> None:
        """Take over a network that has the layers and the final norm of module `number`, and what comes before."""
        num_layers = head.layers_per_module
        super().__init__(network, frozenset(), LayerRange(0, num_layers, num_layers + 1))
        assert self.packs_rows, "the families of these heads attend through slots"
        for part in network.modules():
            if isinstance(getattr(part, "layer_idx", None), int):
                part.layer_idx += number * num_layers
        base: Any = network.base_model
        self.final_norm: nn.Module = getattr(base, head.family.norm_of_model)
        setattr(base, head.family.norm_of_model, nn.Identity())  # what leaves the layers is wanted, too
        self._embedding_norm, self._hidden_norm = deepcopy(self.final_norm), deepcopy(self.final_norm)
        self._embedding_norm.weight, self._hidden_norm.weight = (
            nn.Parameter(ends[name], requires_grad=False) for name in ("embedding_norm", "hidden_norm")
        )
        self._projection = pack(ends["projection"], None) or plain_linear(ends["projection"], None)
        pack_linears(network)

    @classmethod
    def load(cls, head: OwnHead, number: int, device: torch.device, dtype: torch.dtype) -> "MtpModule":
        """Load a module of a head; raise a ValueError, in one line, for tensors that are not those of its family."""
        tensors = head.read(number)
        ends = {name: tensors.pop(name).to(device, dtype) for name in ("embedding_norm", "hidden_norm", "projection")}
        transformers_logging.disable_progress_bar()
        config = deepcopy(head.config)
        try:
            network, report = layers_class(config).from_pretrained(
                None, config=config, state_dict=tensors, dtype=dtype, output_loading_info=True
            )
        except NETWORK_FAILURES as error:
            raise ValueError(f"cannot load the MTP head of {head.path!r}: {in_one_line(error)}") from error
        odd = [name for what in ("missing_keys", "unexpected_keys", "mismatched_keys") for name in report[what]]
        if odd or ends["projection"].shape != (config.hidden_size, 2 * config.hidden_size):
            what = odd[0] if odd else f"a projection of shape {list(ends['projection'].shape)}"
            raise ValueError(
                f"the MTP head of {head.path!r} does not fit its family's layers ({type(network).__name__}), first "
                f"{what!r}; leave models.draft out, or download the model again"
            )
        return cls(network.to(device), head, number, ends)

    @torch.inference_mode()
    def read(
        self,
        embedded_NH: torch.Tensor,
        states_NH: torch.Tensor,
        starts: Seq[int],
        lengths: Seq[int],
        slots: Seq[int],
        cache: KVCache,
    ) -> torch.Tensor:
        """Read pairs, the rows' ones end to end; return the residual stream behind the last layer, [N, H].

        Row b has `lengths[b]` pairs from position `starts[b]` of slot `slots[b]` on.
        """
        both_NX = torch.cat([self._embedding_norm(embedded_NH), self._hidden_norm(states_NH)], dim=-1)
        packing = Packing.of(lengths, self.device)
        nothing_B0 = torch.zeros(len(lengths), 0, dtype=torch.int64, device=self.device)
        fed = self._projection(both_NX), starts, max(lengths), packing, nothing_B0, slots, cache, None, lengths
        return self._forward(*fed, is_prompt=True).flatten(0, -2)

    def _call(self, fed_BT: torch.Tensor, positions_BT: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        base: Any = self.network.base_model
        hidden_BTH: torch.Tensor = base(inputs_embeds=fed_BT, position_ids=positions_BT, **kwargs).last_hidden_state
        return hidden_BTH
