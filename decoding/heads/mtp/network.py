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
from decoding.checkpoint.layer_subset import LayerRange, layers_class, num_layers
from decoding.checkpoint.supported import NETWORK_FAILURES, in_one_line
from decoding.fused.packed_linear import pack, pack_linears, plain_linear
from decoding.heads.mtp.family import ENDS
from decoding.heads.mtp.files import OwnHead
from decoding.network.slot_network import SlotNetwork


class MtpModule(SlotNetwork):
    """A module whose weights are loaded. Its layers have numbers of their own in the cache of all modules."""

    def __init__(self, network: PreTrainedModel, norm: str, number: int, ends: Seq[torch.Tensor]) -> None:
        """Take over a network that has the layers of module `number` and its final `norm`, and what comes before."""
        size = num_layers(network.config)
        super().__init__(network, frozenset(), LayerRange(0, size, size + 1))
        assert self.packs_rows, "the families of these heads attend through slots"
        for part in network.modules():
            if isinstance(getattr(part, "layer_idx", None), int):
                part.layer_idx += number * size
        self.final_norm: nn.Module = getattr(network.base_model, norm)
        setattr(network.base_model, norm, nn.Identity())  # what leaves the layers is wanted, too
        self._embedding_norm, self._hidden_norm = deepcopy(self.final_norm), deepcopy(self.final_norm)
        for own, weight in zip((self._embedding_norm, self._hidden_norm), ends, strict=False):
            own.weight = nn.Parameter(weight, requires_grad=False)
        self._projection = pack(ends[2], None) or plain_linear(ends[2], None)
        pack_linears(network)

    @classmethod
    def load(cls, head: OwnHead, number: int, device: torch.device, dtype: torch.dtype) -> "MtpModule":
        """Load a module of a head; raise a ValueError, in one line, for tensors that are not those of its family."""
        tensors = head.read(number)
        ends = [tensors.pop(name).to(device, dtype) for name in ENDS]
        return cls(load_layers(head, tensors, dtype).to(device), head.family.final_norm, number, ends)

    def read(
        self, embedded_NH: torch.Tensor, states_NH: torch.Tensor, places: tuple[Seq[int], ...], cache: KVCache
    ) -> torch.Tensor:
        """Read pairs, as `MtpHead.read` does from these starts, lengths and slots; return the stream behind, [N, H]."""
        starts, lengths, slots = places
        both_NX = torch.cat([self._embedding_norm(embedded_NH), self._hidden_norm(states_NH)], dim=-1)
        packing = Packing.of(lengths, self.device)
        nothing_B0 = torch.zeros(len(lengths), 0, dtype=torch.int64, device=self.device)
        fed = self._projection(both_NX), starts, max(lengths), packing, nothing_B0, slots, cache
        return self._forward(*fed).flatten(0, -2)

    def _call(self, fed_BT: torch.Tensor, positions_BT: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        base: Any = self.network.base_model
        hidden_BTH: torch.Tensor = base(inputs_embeds=fed_BT, position_ids=positions_BT, **kwargs).last_hidden_state
        return hidden_BTH


def load_layers(head: OwnHead, tensors: dict[str, torch.Tensor], dtype: torch.dtype) -> PreTrainedModel:
    """Return a network with the layers and the final norm of a module, from tensors by transformers' names."""
    config = deepcopy(head.config)
    transformers_logging.disable_progress_bar()
    try:
        network, report = layers_class(config).from_pretrained(
            None, config=config, state_dict=tensors, dtype=dtype, output_loading_info=True
        )
    except NETWORK_FAILURES as error:
        raise ValueError(f"cannot load the MTP head of {head.path!r}: {in_one_line(error)}") from error
    if odd := [name for what in ("missing_keys", "unexpected_keys", "mismatched_keys") for name in report[what]]:
        raise ValueError(
            f"the MTP head of {head.path!r} does not fit its family's layers ({type(network).__name__}), first "
            f"{odd[0]!r}; leave models.draft out, or download the model again"
        )
    return network
