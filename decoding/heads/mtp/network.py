"""One module of an MTP head, with the target's own layers of transformers: as it is trained, and over slots.

Shapes: N pairs of all rows, H hidden size.
"""

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
from decoding.fused.packed_linear import pack_linears
from decoding.heads.eagle3_head import Places
from decoding.heads.mtp.family import ENDS, Family, Reads
from decoding.heads.mtp.files import OwnHead
from decoding.network.slot_network import SlotNetwork


class MtpNetwork(nn.Module):
    """The parameters of a module."""

    def __init__(self, layers: PreTrainedModel, final_norm: str, reads: Reads = "normed") -> None:
        """Take over a network that has the layers of a module and its final norm; what comes before has no weights."""
        super().__init__()
        self.layers, self.reads = layers, reads
        self.final_norm: Any = getattr(layers.base_model, final_norm)
        setattr(layers.base_model, final_norm, nn.Identity())  # what leaves the layers is wanted, too
        self.embedding_norm, self.hidden_norm = deepcopy(self.final_norm), deepcopy(self.final_norm)
        size = layers.config.hidden_size
        self.projection: Any = nn.Linear(2 * size, size, bias=False, device="meta")

    @classmethod
    def new(cls, config: Any, family: Family) -> "MtpNetwork":
        """Make one of random weights, by the configuration of a model with the layers of one module."""
        layers = layers_class(config)._from_config(config, dtype=torch.float32).eval()
        network = cls(layers, family.final_norm, family.reads[0])
        network.projection.to_empty(device="cpu").reset_parameters()
        return network

    @classmethod
    def load(cls, head: OwnHead, number: int = 0, dtype: torch.dtype = torch.float32) -> "MtpNetwork":
        """Load a module of a head; raise a ValueError, in one line, for tensors that are not those of its family."""
        tensors = head.read(number)
        ends = {name: nn.Parameter(tensors.pop(name).to(dtype)) for name in ENDS}
        network = cls(_load_layers(head, tensors, dtype), head.family.final_norm, head.family.reads[0])
        for name, weight in ends.items():
            getattr(network, name).weight = weight
        return network

    def state(self, stream: torch.Tensor, norm: nn.Module) -> torch.Tensor:
        """Return what a module reads of the residual stream before a final norm."""
        found: torch.Tensor = norm(stream) if self.reads == "normed" else stream
        return found


class MtpModule(SlotNetwork):
    """A module over slots. Its layers have numbers of their own in the cache of all modules."""

    def __init__(self, own: MtpNetwork, number: int) -> None:
        """Take over the network of module `number`."""
        size = num_layers(own.layers.config)
        super().__init__(own.layers, frozenset(), LayerRange(0, size, size + 1))
        assert self.packs_rows, "the families of these heads attend through slots"
        for part in own.layers.modules():
            if isinstance(getattr(part, "layer_idx", None), int):
                part.layer_idx += number * size
        pack_linears(own.requires_grad_(False))
        self.final_norm, self._projection = own.final_norm, own.projection
        self._embedding_norm, self._hidden_norm = own.embedding_norm, own.hidden_norm

    def read(self, embedded_NH: torch.Tensor, states_NH: torch.Tensor, places: Places, cache: KVCache) -> torch.Tensor:
        """Read pairs, as `MtpHead.read` does; return the stream behind the layers, [N, H]."""
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


def _load_layers(head: OwnHead, tensors: dict[str, torch.Tensor], dtype: torch.dtype) -> PreTrainedModel:
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
