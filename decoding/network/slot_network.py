"""SlotNetwork: a transformers network over slot caches, whole or some of its layers.

It computes with transformers' own code, or with our few large operations if they fit (`speed_up`). Hooks of the layers
read the residual stream while transformers' own code runs.

Shapes: B rows, T tokens of the longest, N tokens in all, J positions whose logits are wanted, V vocabulary, H or E
hidden size.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from decoding.cache import slot_attention as attention
from decoding.cache.features import Features
from decoding.cache.kv_cache import KVCache
from decoding.cache.plan import Packing, Plan
from decoding.checkpoint.layer_subset import CannotCutError, LayerRange, layer_list, num_layers
from decoding.checkpoint.supported import cache_argument, max_positions
from decoding.choices import Exact as Exact
from decoding.codes.left_weight import identity_of
from decoding.device import to_device
from decoding.fp8.linear import Fp8Linear, weights_of
from decoding.fused.coded_linear import CodedLinear, lay_out_codes
from decoding.fused.decoder import FUSED_LINEARS, NOT_FUSED, FusedDecoder
from decoding.fused.graphs import ForwardGraphs, Inputs
from decoding.fused.packed_linear import coded_layers, pack_linears, packed_layers
from decoding.gpu.available import kernels_run_on
from decoding.states import layers as state_layers
from decoding.states.book import num_recent_states


class SlotNetwork(ABC):
    """The common part of a whole model and a stage of one."""

    layers: LayerRange | None  # None: all of them
    vocab_size: int | None  # of the logits; None without a head

    def __init__(
        self, network: PreTrainedModel, eos_token_ids: frozenset[int], layers: LayerRange | None = None
    ) -> None:
        """Take over `network`, of which these layers are here (default: all); its head gets our hook."""
        self.network = network.eval().requires_grad_(False)
        attention.install(self.network)
        self.has_states: bool = state_layers.install(self.network)
        self._cache_argument = cache_argument(self.network)
        self.eos_token_ids = eos_token_ids
        # Read in every round; the network's own properties go through its parameters each time.
        self.device: torch.device = network.device
        self.dtype: torch.dtype = network.dtype
        if self.device.type == "cuda":  # cuDNN would plan each shape anew, for tens of milliseconds of the host
            torch.backends.cuda.enable_cudnn_sdp(False)
        self.is_fp8: bool = any(isinstance(module, Fp8Linear) for module in network.modules())
        self.max_positions: int | None = max_positions(network.config)
        self.hidden_size: int = network.config.get_text_config().hidden_size
        # Models with attention of their own cannot take packed rows; they get a rectangle.
        self.packs_rows: bool = network.config.get_text_config()._attn_implementation == attention.SLOT_ATTENTION
        # Whether each row has a forward of its own, in which all that the model asks of the cache is true of that row.
        self.runs_rows_apart = False
        self.is_kept: bool = bool(packed_layers(network))  # laid out already, by an earlier engine
        # Counted now, while all weights are where the checkpoint put them.
        num_left_bytes = lay_out_codes(self.network)
        own = (w.to_local() if isinstance(w, DTensor) else w for w in weights_of(network))  # what this process has
        self.num_weight_bytes: int = num_left_bytes + sum(w.numel() * w.element_size() for w in own)
        self.fused: FusedDecoder | None = None  # runs instead of the network's own code if it fits
        self.graphs: ForwardGraphs | None = None  # of the fused network, on CUDA
        self.may_fuse = True  # whether the probe has found nothing that forbids it
        self.why_not_fused = ""  # and what it found
        self.is_sped_up = False
        self.num_coded_layers = 0  # that multiply codes of 4 or 8 bits, once it is sped up
        self.found: Any = None  # by the probe, if the layers are fused
        self.exact: Exact = "off"  # whether `speed_up` lays out products in which no line depends on another
        self.is_measured_invariant = False
        self.layers = layers
        self._wanted = _Wanted()
        self.vocab_size = None
        if layers is None or layers.has_head:
            head = network.get_output_embeddings()
            self.vocab_size = head.out_features if self.is_kept else identity_of(head).shape[0]
            head.register_forward_pre_hook(self._wanted.keep)

    def new_cache(self, num_slots: int, num_positions: int, num_draft_tokens: int) -> KVCache:
        """Return an empty cache for this network, as `Target.allocate` says."""
        kind = KVCache
        if self.network.config.get_text_config().model_type == "minimax":
            from decoding.cache.minimax_cache import MiniMaxRows as kind
        num_states = num_recent_states(num_draft_tokens) if self.has_states else 0
        return kind(num_slots, num_positions, num_recent_states=num_states)

    @property
    def fallback(self) -> str:
        """Why a model that was to run fused, and on a GPU recorded, does not; an empty text if it does, or was not to.

        It is slower then, and right.
        """
        if self.fused is None:
            return self.why_not_fused and f"{NOT_FUSED}: {self.why_not_fused}"
        return "" if self.graphs is None else self.graphs.recordings.refusal

    @property
    def is_batch_invariant(self) -> bool:
        return self.is_measured_invariant or (self.fused is not None and self.fused.is_batch_invariant)

    @property
    def has_exact_products(self) -> bool:
        """Whether the products are, or will be, our GPU kernels': where they run, and the library's are not wanted.

        `auto` leaves float32 to the library, since close calls are decided there by the row alone.
        """
        wanted = self.exact == "on" or (self.exact == "auto" and self.dtype is not torch.float32)
        return wanted and kernels_run_on(self.device)

    @torch.inference_mode()
    def plain(self, fed_T: torch.Tensor, num_logits: int = 1) -> torch.Tensor:
        """Run one row from its beginning without a cache; return its last logits [J, V], or hidden states [T, H]."""
        fed_T = fed_T.to(self.device)
        positions_1T = torch.arange(len(fed_T), device=self.device)[None]
        return self._run(fed_T[None], positions_1T, positions_1T[:, len(fed_T) - num_logits :], use_cache=False)[0]

    @abstractmethod
    def _call(self, fed_BT: torch.Tensor, positions_BT: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        """Run tokens [B, T] or hidden states [B, T, H]; return the wanted logits, or hidden states."""

    def _lay_out(self) -> None:
        """Lay the weights out for this device, and fuse the layers of a network that fits; caches become invalid."""
        self.is_sped_up = True
        fits = not self.runs_rows_apart and FusedDecoder.fits(self.network)
        if fits and not self.may_fuse:
            fits, self.why_not_fused = False, "a miniature of it deviates when they are fused"
        if not self.is_kept:
            pack_linears(self.network, FUSED_LINEARS if fits else (), self.has_exact_products)
        self.num_coded_layers = len(coded_layers(self.network))
        coded = [layer for layer in packed_layers(self.network) if isinstance(layer, CodedLinear)]
        self.num_weight_bytes -= sum(layer.num_bytes_saved for layer in coded)
        self.fused = FusedDecoder(self.network, self.layers) if fits else None

    def _forward(
        self,
        fed_N: torch.Tensor,
        starts: Seq[int],
        width: int,
        packing: Packing | None,
        wanted_BJ: torch.Tensor,
        slots: Seq[int] | None,
        cache: KVCache,
        features: Features | None = None,
        lengths: Seq[int] | None = None,
        *,
        is_prompt: bool = False,
    ) -> torch.Tensor:
        """Write the rows' keys and values; return logits [B, J, V], or hidden states of all tokens [..., H].

        `fed_N` are the rows' tokens end to end, packed, or `width` of each; their positions are starts[b],
        starts[b] + 1, ... of slot slots[b] (by default slot b). Row b has `lengths[b]` of them (by default all).
        `wanted_BJ` are indexes into each row's tokens. The features of all that is fed, padding included, are left in
        `features`. A row of a prompt is never rolled back to one of its tokens but the last.
        """
        if self.runs_rows_apart and (len(starts) > 1 or packing is not None):
            ends = accumulate([width] * len(starts)) if packing is None else packing.row_first[1:].tolist()
            outputs, first = [], 0
            for row, end in enumerate(ends):
                own_N, wanted_1J = fed_N[first:end], wanted_BJ[row : row + 1].clamp(max=end - first - 1)
                slot, first = row if slots is None else slots[row], end
                own = own_N, [starts[row]], len(own_N), None, wanted_1J, [slot], cache, features
                length = None if lengths is None else [lengths[row]]
                outputs.append(self._forward(*own, length, is_prompt=is_prompt))
            return torch.cat(outputs, dim=1 if self.vocab_size is None else 0)
        states: AbstractContextManager[object] = nullcontext()
        if cache.states is not None:
            num_tokens = [width] * len(starts) if lengths is None else lengths
            row_slots = range(len(starts)) if slots is None else slots
            place = width if packing is None else None
            states = cache.states.planned(row_slots, starts, num_tokens, place, keeps_each=not is_prompt)
        with states:
            plan, positions_BT = self._planned(starts, width, packing, slots, cache)
            if self.fused is None and packing is None:
                fed_BT = fed_N.view(*positions_BT.shape, *fed_N.shape[1:])
                return self._run(
                    fed_BT, positions_BT, wanted_BJ, features, use_cache=True, **{self._cache_argument: cache}
                )
            positions_N = positions_BT.flatten()
            if packing is None:
                firsts = 0 if len(starts) == 1 else torch.arange(0, fed_N.shape[0], width, device=self.device)[:, None]
                wanted_at_BJ = wanted_BJ + firsts
            else:
                positions_N = positions_N[packing.packed_N]
                wanted_at_BJ = packing.unpacked_BT.gather(1, wanted_BJ)
            if self.fused is not None:
                run = self._run_fused if self.graphs is None else self.graphs.run
                out = run(Inputs(fed_N, positions_N, wanted_at_BJ, plan, features), cache)
            else:
                wanted_1J = wanted_at_BJ.flatten()[None]
                arguments = {self._cache_argument: cache, "use_cache": True, "slot_plan": plan}
                out = self._run(fed_N[None], positions_N[None], wanted_1J, features, **arguments)
            return out if self.vocab_size is None else out.view(*wanted_BJ.shape, self.vocab_size)

    def _planned(
        self, starts: Seq[int], width: int, packing: Packing | None, slots: Seq[int] | None, cache: KVCache
    ) -> tuple[Plan, torch.Tensor]:
        """Plan the next forward in the cache; return its plan and the positions [B, T] that the network is told."""
        starts_B = to_device(starts, self.device)
        slots_B = None if slots is None or list(slots) == list(range(len(slots))) else to_device(slots, self.device)
        positions_BT = starts_B[:, None] + torch.arange(width, device=self.device)
        plan = cache.plan(slots_B, positions_BT, max(starts) + width, packing, is_exact=self.runs_rows_apart)
        if self.max_positions is not None:
            positions_BT = positions_BT.clamp(max=self.max_positions - 1)
        return plan, positions_BT

    def _run_fused(self, inputs: Inputs, cache: KVCache) -> torch.Tensor:
        assert self.fused is not None
        wanted_M = inputs.wanted_BJ.flatten()
        return self.fused.forward(inputs.tokens_N, inputs.positions_N, wanted_M, cache, inputs.plan, inputs.features)

    def _run(
        self,
        fed_BT: torch.Tensor,
        positions_BT: torch.Tensor,
        wanted_BJ: torch.Tensor,
        features: Features | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        self._wanted.at_BJ = wanted_BJ
        try:
            with layer_hooks(self.network, features):
                out = self._call(fed_BT, positions_BT, **kwargs)
        finally:
            self._wanted.at_BJ = None
        if features is not None:
            features.project()
        return out


class _Wanted:
    """The positions that the network's head multiplies, for all models that share the network."""

    def __init__(self) -> None:
        self.at_BJ: torch.Tensor | None = None  # None: all

    def keep(self, head: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """Keep only the wanted positions of the output head's input; runs as its hook."""
        hidden_BTH, *rest = args
        if self.at_BJ is None:
            return args
        index_BJH = self.at_BJ[:, :, None].expand(-1, -1, hidden_BTH.shape[-1])
        return (hidden_BTH.gather(1, index_BJH), *rest)


def layers_to_read(network: PreTrainedModel) -> torch.nn.ModuleList:
    """Return the decoder layers of a network; raise a ValueError if they cannot be told from others."""
    try:
        return layer_list(network, num_layers(network.config))
    except CannotCutError:
        raise ValueError(
            f"{type(network).__name__} has no single list of {num_layers(network.config)} layers, so its hidden states "
            "cannot be handed to a draft; use a draft that reads tokens alone"
        ) from None


@contextmanager
def layer_hooks(network: PreTrainedModel, features: Features | None) -> Iterator[None]:
    """Fill the features with what enters the layers that are read; there are hooks for this one forward only.

    What leaves the last layer is what enters the final norm, whose name differs from model to model.
    """
    if features is None:
        yield
        return
    layers = layers_to_read(network)
    with ExitStack() as hooks:
        for layer_id in features.tap.layer_ids:
            keep = partial(_keep, features, layer_id)
            if layer_id < len(layers):
                hooks.callback(layers[layer_id].register_forward_pre_hook(keep, with_kwargs=True).remove)
            else:
                hooks.callback(layers[-1].register_forward_hook(keep).remove)
        yield


def _keep(features: Features, layer_id: int, layer: torch.nn.Module, args: tuple[Any, ...], given: Any) -> None:
    """Keep what enters a layer, whose arguments by name are given, or what leaves the last one, which is given."""
    if isinstance(given, dict):
        hidden_BTE = args[0] if args else given["hidden_states"]
    else:
        hidden_BTE = given[0] if isinstance(given, tuple) else given
    if hidden_BTE.dim() != 3:
        raise ValueError(
            f"the layers of this target pass on hidden states of shape {list(hidden_BTE.shape)}, which no draft reads; "
            "use a draft that reads tokens alone"
        )
    features.keep(layer_id, hidden_BTE.flatten(0, 1))
