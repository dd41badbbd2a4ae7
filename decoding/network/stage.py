"""Stage: a range of a causal LM's layers in this process, with slot caches.

It turns tokens or hidden states into hidden states or logits. Inputs and outputs are packed: the rows' tokens end to
end, without padding. Several caches may be in use, one for each session. A hook feeds the incoming hidden states to the
first own layer, and another ends the forward after the last one.

Shapes: B rows, T tokens of the longest, N tokens in all, J positions whose logits are wanted, V vocabulary, H hidden
size.
"""

import inspect
from collections.abc import Sequence as Seq
from typing import Any

import torch
from transformers import PreTrainedModel

from decoding.cache import slot_attention as attention
from decoding.cache.features import Features, FeatureTap
from decoding.cache.kv_cache import KVCache
from decoding.cache.plan import Packing
from decoding.checkpoint.layer_subset import (
    CannotCutError,
    LayerRange,
    check_can_be_cut,
    cut,
    layer_list,
    num_layers,
    stage_class,
)
from decoding.checkpoint.loading import DType, load_network
from decoding.checkpoint.rank import check_can_be_sharded
from decoding.checkpoint.supported import load_config, model_folder
from decoding.device import Device, to_device
from decoding.fused.decoder import FusedDecoder
from decoding.fused.graphs import ForwardGraphs, graphs_on
from decoding.fused.packed_linear import use_library_products
from decoding.network.slot_network import SlotNetwork
from decoding.ranks.shares import take_shares

# The arguments of a layer besides the hidden states that are allowed: all follow from positions, slots and the mask.
# Any other (token embeddings of each layer, keys of another layer, the first hidden states) would have to cross a cut.
_ALLOWED_ARGUMENTS = {
    "alibi",
    "attention_mask",
    "cache_position",
    "causal_mask",
    "hidden_states",
    "kwargs",
    "layer_past",
    "past_key_value",
    "past_key_values",
    "position_bias",
    "position_embeddings",
    "position_ids",
    "slot_plan",
}


class _LeftError(Exception):
    """Not an error: it ends a forward after the last own layer."""

    def __init__(self, hidden_BTH: torch.Tensor) -> None:
        self.hidden_BTH = hidden_BTH


class Stage(SlotNetwork):
    """Some of a model's layers; the first stage has the embedding, the last one the head."""

    layers: LayerRange

    def __init__(
        self, network: PreTrainedModel, layers: LayerRange, eos_token_ids: frozenset[int], num_ranks: int = 1
    ) -> None:
        """Take over `network`, of the class that `stage_class` makes for these layers.

        With `num_ranks` above 1 it is this process's share; all ranks must run the same forwards in the same order.
        """
        super().__init__(network, eos_token_ids, layers)
        self.num_ranks = num_ranks
        modules = layer_list(network, layers.num_layers)
        embedding: Any = network.get_input_embeddings()
        self._embedding_size = int(embedding.embedding_dim)
        self._incoming_BTH: torch.Tensor | None = None
        self._is_checked = False
        modules[layers.first].register_forward_pre_hook(self._enter, with_kwargs=True)
        if not layers.has_head:
            modules[layers.end - 1].register_forward_hook(self._leave)
        self._caches: dict[int, KVCache] = {}
        self._recorded: dict[int, ForwardGraphs] = {}  # of each session, since they have the addresses of its slots
        self.misleads = 0  # of caches that are allocated from now on, for the probe

    @classmethod
    def load(
        cls, path: str, index: int, num_stages: int, device: Device = "auto", dtype: DType = "auto", num_ranks: int = 1
    ) -> "Stage":
        """Load stage `index` of the model at `path`; raise a ValueError saying why it cannot be run.

        The weights of the other stages are not read. With `num_ranks` above 1, each of the ranks, which have met
        (`decoding/checkpoint/rank.py`), has its share of every layer.
        """
        path = model_folder(path)
        config = load_config(path)
        layers = cut(num_layers(config), num_stages)[index]
        if num_stages > 1 or num_ranks > 1:
            check_can_be_cut(config, path)
        if num_ranks > 1:
            check_can_be_sharded(config, path, num_ranks)
        of_these = stage_class(config, layers)
        network, eos_token_ids = load_network(path, device, dtype, of_these, num_ranks, in_codes=True)
        return cls(network, layers, eos_token_ids, num_ranks)

    def cache(self, session: int = 0) -> KVCache:
        """Return the slots of a session; `allocate` comes first."""
        return self._caches[session]

    def allocate(self, num_slots: int, num_positions: int, num_draft_tokens: int = 0, session: int = 0) -> None:
        """Reserve a fresh cache for a session, as `Target.allocate`; the contents of its earlier one are lost."""
        self._forget(session)
        self._caches[session] = cache = self.new_cache(num_slots, num_positions, num_draft_tokens)
        cache.misleads = self.misleads

    def release(self, session: int = 0) -> None:
        """Free a session's cache; `allocate` comes before its next forward."""
        self._caches.pop(session, None)
        self._forget(session)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def speed_up(self) -> None:
        """Lay the weights out for this device, and fuse the layers of a network that fits; all caches are lost.

        Ranks whose layers do not fit keep their shares as transformers left them: its forwards depend on their layout.
        """
        self._caches.clear()
        if self.is_sped_up:
            return
        if self.num_ranks == 1 or self._takes_shares():
            self._lay_out()
        self.is_sped_up = True

    def _takes_shares(self) -> bool:
        """Make plain modules of this rank's shares, if its layers can then be fused; else say why they cannot."""
        if self.runs_rows_apart or not FusedDecoder.fits(self.network):
            return False
        if not self.may_fuse:
            self.why_not_fused = "a miniature of it deviates when they are fused"
        elif not take_shares(self.network):
            self.why_not_fused = "ranks of this family gather what is between two products"
        return not self.why_not_fused

    def slow_down(self, why: str) -> None:
        """Run transformers' own code again, for the reason that was measured, and the library's products in it."""
        if self.fused is not None:
            self.why_not_fused = why
        if self.has_exact_products:
            use_library_products(self.network)
        self.fused, self.exact = None, "off"
        self._recorded.clear()

    @property
    def is_recorded(self) -> bool:
        """Whether forwards of few tokens are recorded, as far as is known now."""
        return self._new_graphs() is not None and not self.fallback

    @property
    def fallback(self) -> str:
        refusals = (graphs.recordings.refusal for graphs in self._recorded.values())
        return super().fallback or next(filter(None, refusals), "")

    def _new_graphs(self) -> ForwardGraphs | None:
        if self.fused is None:
            return None
        return graphs_on(self.device, self._run_fused, has_head=self.layers.has_head)

    def _forget(self, session: int) -> None:
        if session in self._recorded:
            self._recorded[session].forget()

    def reader(self, layer_ids: Seq[int]) -> Features | None:
        """Return features that take the streams that enter these layers, as they are; None if no one is read here.

        Each stream is read in one stage: in that of the layer, and what leaves the last layer in the last one.
        """
        here = [*range(self.layers.first, self.layers.end), *([self.layers.end] if self.layers.has_head else [])]
        own = tuple(layer_id for layer_id in layer_ids if layer_id in here)
        return Features(FeatureTap(own, lambda stream_NX: stream_NX, _refuse)) if own else None

    @torch.inference_mode()
    def forward(
        self,
        fed_N: torch.Tensor,
        starts: Seq[int],
        lengths: Seq[int],
        wanted_BJ: torch.Tensor | None = None,
        slots: Seq[int] | None = None,
        session: int = 0,
        features: Features | None = None,
        *,
        is_prompt: bool = False,
    ) -> torch.Tensor:
        """Write the rows' keys and values; return hidden states [N, H], or logits [B, J, V] of the last stage.

        `fed_N` are the rows' tokens end to end, `lengths[b]` of them for row b, or the output of the stage before.
        Their positions are starts[b], starts[b] + 1, ... of slot slots[b] (by default slot b). `wanted_BJ` are indexes
        into each row's tokens; an index beyond the last token means that one. What is read of the N tokens is left in
        `features` (see `reader`). `is_prompt` as in `LanguageModel.forward`. What comes of a recorded forward is valid
        until the session's next one.
        """
        fed_N, packing = fed_N.to(self.device), Packing.of(lengths, self.device)
        if wanted_BJ is None:
            wanted_BJ = torch.zeros(len(lengths), 0, dtype=torch.int64)
        last_B1 = to_device(lengths, self.device)[:, None] - 1
        wanted_BJ = wanted_BJ.to(self.device).minimum(last_B1)
        if session not in self._recorded and (recorded := self._new_graphs()) is not None:
            self._recorded[session] = recorded
        self.graphs = self._recorded.get(session)
        # Our own layers always take packed rows. In a rectangle, a row's last token is repeated to the end.
        rectangle = None if self.packs_rows or self.runs_rows_apart or self.fused is not None else packing
        if rectangle is not None:
            fed_N, packing = fed_N[rectangle.unpacked_BT.flatten()], None
        of_rows = starts, max(lengths), packing, wanted_BJ, slots, self._caches[session], features, lengths
        out = self._forward(fed_N, *of_rows, is_prompt=is_prompt)
        if features is not None and rectangle is not None:
            features.add(features.take()[rectangle.packed_N])
        if self.layers.has_head:
            return out
        hidden_NH = out.flatten(0, -2)
        return hidden_NH if rectangle is None else hidden_NH[rectangle.packed_N]

    def plain_by_default(self, fed_T: torch.Tensor, num_logits: int = 1) -> torch.Tensor:
        """Run `plain` with transformers' default attention, with which everything else is compared."""
        with attention.default_attention(self.network):
            return self.plain(fed_T, num_logits)

    def _call(self, fed_BT: torch.Tensor, positions_BT: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        if self.layers.has_embedding:
            arguments = {"input_ids": fed_BT}
        else:
            self._incoming_BTH = fed_BT
            arguments = {"inputs_embeds": fed_BT.new_zeros(1, 1, self._embedding_size).expand(*fed_BT.shape[:2], -1)}
        try:
            output = self.network(**arguments, position_ids=positions_BT, **kwargs)
        except _LeftError as left:
            return left.hidden_BTH
        finally:
            self._incoming_BTH = None
        assert self.layers.has_head, "another stage's forward ends at its last own layer"
        logits: torch.Tensor = output.logits
        return logits

    def _enter(
        self, layer: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if not self._is_checked:
            self._refuse_shared_state(layer, args, kwargs)
            self._is_checked = True
        if self._incoming_BTH is None:
            return args, kwargs
        if args:
            return (self._incoming_BTH, *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": self._incoming_BTH}

    def _leave(self, layer: torch.nn.Module, args: tuple[Any, ...], output: Any) -> None:
        raise _LeftError(output[0] if isinstance(output, tuple) else output)

    def _refuse_shared_state(self, layer: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        bound = inspect.signature(layer.forward).bind(*args, **kwargs).arguments
        handed = {**bound, **bound.get("kwargs", {})}
        foreign = sorted(
            name
            for name, value in handed.items()
            if name not in _ALLOWED_ARGUMENTS and not isinstance(value, bool | int | float | str | None)
        )
        if foreign:
            raise CannotCutError(
                f"{type(self.network).__name__} cannot be cut into stages: its layers are passed {', '.join(foreign)}, "
                "which no stage but the first has; run it whole (stages.count 1, stages.tensor_parallel 1)"
            )


def _refuse(*_: object) -> None:
    raise AssertionError("the features of a stage go on to the next one, and no tap receives them")
