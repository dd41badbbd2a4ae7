"""Stage: a range of a causal LM's layers in this process, with slot caches. Tokens or hidden states in, hidden states
or logits out.

What comes in and goes out is packed: the rows' tokens end to end, without padding. Like the whole model, a stage knows
no lengths: each forward names its rows' slots and starts. Several caches may be in use, one for each session.

Shapes: B rows, T tokens of the longest, N tokens in all, J positions whose logits are wanted, V vocabulary, H hidden
size.
"""

from collections.abc import Sequence as Seq

import torch
from transformers import PretrainedConfig, PreTrainedModel

from decoding import attention
from decoding.device import Device, to_device
from decoding.fused_decoder import FUSED_LINEARS, FusedDecoder
from decoding.kv_cache import KVCache, Packing
from decoding.layer_range import LayerRange, cut
from decoding.model import DType, load_network
from decoding.packed_linear import pack_linears
from decoding.rank import check_can_be_shared_out, own
from decoding.stage_network import StageNetwork, check_can_be_cut, num_layers, stage_class
from decoding.support import max_positions, model_folder


class Stage:
    """Some of a model's layers; the first of them with the embedding, the last with the head."""

    def __init__(
        self, network: PreTrainedModel, layers: LayerRange, eos_token_ids: frozenset[int], num_ranks: int = 1
    ) -> None:
        """Take over `network`, of the class that `stage_class` gives for these layers.

        With `num_ranks` above 1 it is this process's share: all ranks must run the same forwards in the same order.
        """
        self.num_ranks = num_ranks
        self.network = network.eval().requires_grad_(False)
        self.layers = layers
        self.eos_token_ids = eos_token_ids
        attention.install(self.network)
        self._part = StageNetwork(self.network, layers)
        self.device: torch.device = network.device
        self.dtype: torch.dtype = network.dtype
        self.max_positions: int | None = max_positions(network.config)
        self.packs_rows: bool = network.config.get_text_config()._attn_implementation == attention.SLOT_ATTENTION
        self.fused: FusedDecoder | None = None
        self.is_sped_up = False
        self.num_weight_bytes: int = sum(p.numel() * p.element_size() for p in map(own, network.parameters()))
        self.vocab_size: int | None = None  # of the logits; only the last stage has any
        self._caches: dict[int, KVCache] = {}
        self._logits_at_BJ: torch.Tensor | None = None
        if layers.has_head:
            head = network.get_output_embeddings()
            self.vocab_size = head.weight.shape[0]
            head.register_forward_pre_hook(self._keep_wanted_positions)

    @classmethod
    def load(
        cls,
        path: str,
        index: int,
        num_stages: int,
        device: Device = "auto",
        dtype: DType = "auto",
        num_ranks: int = 1,
    ) -> "Stage":
        """Stage `index` of so many of the model at `path`, or a ValueError saying why it cannot be run.

        The weights of the other stages are not read. With `num_ranks` above 1 each of so many processes, which have
        met (`decoding/rank.py`), has its share of every layer.
        """
        path = model_folder(path)
        layers: LayerRange | None = None

        def network_class(config: PretrainedConfig) -> type[PreTrainedModel]:
            nonlocal layers
            layers = cut(num_layers(config), num_stages)[index]
            if num_stages > 1:
                check_can_be_cut(config, path)
            if num_ranks > 1:
                check_can_be_shared_out(config, path, num_ranks)
            return stage_class(config, layers)

        network, eos_token_ids = load_network(path, device, dtype, network_class, num_ranks)
        assert layers is not None
        return cls(network, layers, eos_token_ids, num_ranks)

    @property
    def is_batch_invariant(self) -> bool:
        """Whether what comes out for a token is the same, bit for bit, in any batch, slot and cut of its row."""
        return self.fused is not None and self.fused.is_batch_invariant

    def cache(self, session: int = 0) -> KVCache:
        """The slots of a session; `allocate` comes first."""
        return self._caches[session]

    def allocate(self, num_slots: int, num_positions: int, session: int = 0) -> None:
        """Reserve a fresh cache of slots x positions for a session; everything in its earlier one is gone."""
        self._caches[session] = KVCache(num_slots, num_positions)

    def release(self, session: int = 0) -> None:
        """Give a session's cache back; `allocate` comes before its next forward."""
        self._caches.pop(session, None)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def speed_up(self) -> None:
        """Lay the weights out for this device, and fuse the layers of a network that fits; all caches are gone.

        Weights that are shared out stay as transformers left them: its hooks know their layout.
        """
        self._caches.clear()
        if self.is_sped_up or self.num_ranks > 1:
            return
        self.is_sped_up = True
        fits = FusedDecoder.fits(self.network)
        pack_linears(self.network, FUSED_LINEARS if fits else ())
        if self.device.type == "cpu":  # what is left still points into the file, and keeps all of it mapped
            for parameter in self.network.parameters():
                parameter.data = parameter.data.clone()
        self.fused = FusedDecoder(self.network, self.layers) if fits else None

    def slow_down(self) -> None:
        """Run transformers' own code again, where ours was measured to be off."""
        self.fused = None

    @torch.inference_mode()
    def forward(
        self,
        fed_N: torch.Tensor,
        starts: Seq[int],
        lengths: Seq[int],
        wanted_BJ: torch.Tensor | None = None,
        slots: Seq[int] | None = None,
        session: int = 0,
    ) -> torch.Tensor:
        """Hidden states [N, H], or from the last stage logits [B, J, V], after writing the rows' keys and values.

        `fed_N` are the rows' tokens end to end, `lengths[b]` of them for row b, or what the stage before made of them.
        They stand at starts[b], starts[b] + 1, ... of slot slots[b] (by default slot b). `wanted_BJ` are indexes into
        each row's tokens, those beyond a row's last token meaning that one.
        """
        cache = self._caches[session]
        num_rows, width = len(lengths), max(lengths)
        packing = Packing.of(lengths, self.device)
        starts_B, lengths_B = to_device(starts, self.device), to_device(lengths, self.device)
        slots_B = None if slots is None or list(slots) == list(range(len(slots))) else to_device(slots, self.device)
        positions_BT = starts_B[:, None] + torch.arange(width, device=self.device)
        is_rectangle = packing is None or not self.packs_rows
        packs = self.fused is not None or not is_rectangle  # our own layers always take packed rows
        plan = cache.plan(slots_B, positions_BT, max(starts) + width, packing if packs else None)
        if self.max_positions is not None:
            positions_BT = positions_BT.clamp(max=self.max_positions - 1)
        fed_N = fed_N.to(self.device)
        if wanted_BJ is None:
            wanted_BJ = starts_B.new_zeros(num_rows, 0)
        wanted_BJ = wanted_BJ.to(self.device).minimum(lengths_B[:, None] - 1)
        if self.fused is not None:
            positions_N = positions_BT.flatten() if packing is None else positions_BT.flatten()[packing.packed_N]
            first_B = plan.row_first[:-1]
            out = self.fused.forward(fed_N, positions_N, (first_B[:, None] + wanted_BJ).flatten(), cache, plan)
        elif is_rectangle:
            fed_BT = _rectangle(fed_N, packing, num_rows, width)
            out = self._run(fed_BT, positions_BT, wanted_BJ, past_key_values=cache, use_cache=True)
            if not self.layers.has_head:
                out = out.flatten(0, 1) if packing is None else out.flatten(0, 1)[packing.packed_N]
        else:
            assert packing is not None
            wanted_1J = (packing.row_first[:-1, None] + wanted_BJ).flatten()[None]
            positions_1N = positions_BT.flatten()[packing.packed_N][None]
            out = self._run(fed_N[None], positions_1N, wanted_1J, past_key_values=cache, use_cache=True, slot_plan=plan)
            out = out if self.layers.has_head else out[0]
        return out.view(*wanted_BJ.shape, self.vocab_size) if self.vocab_size is not None else out

    @torch.inference_mode()
    def plain(self, fed_T: torch.Tensor, num_logits: int = 1) -> torch.Tensor:
        """As `forward` for one row from its beginning, without any cache: [T, H], or the last logits [J, V]."""
        fed_T = fed_T.to(self.device)
        positions_1T = torch.arange(len(fed_T), device=self.device)[None]
        return self._run(fed_T[None], positions_1T, positions_1T[:, len(fed_T) - num_logits :], use_cache=False)[0]

    def plain_eager(self, fed_T: torch.Tensor, num_logits: int = 1) -> torch.Tensor:
        """`plain` with transformers' own attention: what everything else is measured against."""
        attention.uninstall(self.network)
        try:
            return self.plain(fed_T, num_logits)
        finally:
            attention.install(self.network)

    def _run(
        self, fed_BT: torch.Tensor, positions_BT: torch.Tensor, wanted_BJ: torch.Tensor, **kwargs: object
    ) -> torch.Tensor:
        self._logits_at_BJ = wanted_BJ
        try:
            return self._part.run(fed_BT, positions_BT, **kwargs)
        finally:
            self._logits_at_BJ = None

    def _keep_wanted_positions(self, head: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """Run before the output head: it then multiplies only the positions somebody wants."""
        hidden_BTH, *rest = args
        if self._logits_at_BJ is None:
            return args
        index_BJH = self._logits_at_BJ[:, :, None].expand(-1, -1, hidden_BTH.shape[-1])
        return (hidden_BTH.gather(1, index_BJH), *rest)


def _rectangle(fed_N: torch.Tensor, packing: Packing | None, num_rows: int, width: int) -> torch.Tensor:
    """Packed tokens as [B, T, ...]; where a row has ended, its last one again."""
    if packing is not None:
        fed_N = fed_N[packing.unpacked_BT.flatten()]
    return fed_N.view(num_rows, width, *fed_N.shape[1:])
