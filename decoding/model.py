"""LanguageModel: an unmodified transformers model over slots, the only thing the engine calls to get logits.

Shapes: B rows, T tokens, J positions whose logits are wanted, V vocabulary, H hidden size.
"""

import os
import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from copy import copy
from dataclasses import dataclass
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, GenerationConfig, PretrainedConfig, PreTrainedModel
from transformers.distributed import DistributedConfig
from transformers.utils import logging as transformers_logging

from decoding import attention
from decoding.device import Device, pick_device, synchronize, to_device
from decoding.forward_graphs import ForwardGraphs, Inputs, cuda_recorder
from decoding.fused_decoder import FUSED_LINEARS, FusedDecoder
from decoding.kv_cache import KVCache, Packing
from decoding.packed_linear import pack_linears
from decoding.prefill import Piece, batches, may_go_with
from decoding.support import load_config, max_positions, model_folder
from decoding.target import LocalTarget

DType = Literal["auto", "float32", "bfloat16", "float16"]

_TIMED_START = 64  # positions before tokens whose forward is timed


@dataclass
class _Wanted:
    """Which positions the network's head is to multiply: all who share a network ask it by this."""

    logits_at_BJ: torch.Tensor | None = None


class LanguageModel(LocalTarget):
    """A causal LM with a slot cache. Rows are named by slot and start; nobody here remembers how long a row is."""

    def __init__(self, model: PreTrainedModel, eos_token_ids: frozenset[int]) -> None:
        """Take over `model`; it must not be used by anyone else (its head carries our hook)."""
        self.network = model.eval().requires_grad_(False)
        attention.install(self.network)
        self.eos_token_ids = eos_token_ids
        # Asked for every round; the network would go through its parameters each time.
        self.device: torch.device = model.device  # where the weights are
        self.dtype: torch.dtype = model.dtype  # what they are
        self.max_positions: int | None = max_positions(model.config)
        # Models with attention of their own see no packed rows; they get a rectangle.
        self.packs_rows: bool = model.config.get_text_config()._attn_implementation == attention.SLOT_ATTENTION
        self.cache: KVCache | None = None
        self.fused: FusedDecoder | None = None  # runs instead of the network's own code where it fits
        self.graphs: ForwardGraphs | None = None  # of the fused network, on CUDA
        self.is_sped_up = False
        self._wanted = _Wanted()
        head = model.get_output_embeddings()
        self.vocab_size: int = head.weight.shape[0]
        # Counted while they are all parameters. A forward reads each once, but only a few rows of an input embedding.
        self.num_weight_bytes: int = sum(p.numel() * p.element_size() for p in model.parameters())
        embedding = model.get_input_embeddings().weight
        self.num_bytes_read: int = self.num_weight_bytes
        if embedding is not head.weight:
            self.num_bytes_read -= embedding.numel() * embedding.element_size()
        head.register_forward_pre_hook(self._keep_wanted_positions)

    @classmethod
    def load(cls, path: str, device: Device = "auto", dtype: DType = "auto") -> "LanguageModel":
        """The model at `path` (a folder, or a hub name), or a ValueError saying why it cannot be run.

        Safetensors only, never remote code. `auto` is CUDA where there is one; float32 on CPU, elsewhere the
        checkpoint's own dtype.
        """
        return cls(*load_network(path, device, dtype))

    @property
    def is_batch_invariant(self) -> bool:
        """Whether a token's logits are the same, bit for bit, in any batch, slot and cut of its row."""
        return self.fused is not None and self.fused.is_batch_invariant

    def facts(self) -> dict[str, bool | int]:
        """Whether our layers run, and whether their forwards are recorded."""
        return {"fused": self.fused is not None, "graphs": self.graphs is not None}

    def share(self) -> "LanguageModel":
        """The same weights with a cache of its own. One thread drives all who share."""
        twin = copy(self)
        twin.cache = None
        if self.graphs is not None:  # recordings know the addresses of one cache
            twin.graphs = ForwardGraphs(self._run_fused, cuda_recorder())
        return twin

    def allocate(self, num_slots: int, num_positions: int) -> None:
        """Reserve a fresh cache of slots x positions; everything in an earlier one is gone."""
        self.cache = KVCache(num_slots, num_positions)

    def release(self) -> None:
        """Give the cache's memory back; `allocate` comes before the next forward."""
        self.cache = None
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def speed_up(self) -> None:
        """Lay the weights out for this device, and fuse the layers of a network that fits; its cache is gone.

        The network stays whole and callable. `decoding/probe.py` measures that it computes the same.
        """
        self.cache = None
        if self.is_sped_up:
            return
        self.is_sped_up = True
        fits = FusedDecoder.fits(self.network)
        pack_linears(self.network, FUSED_LINEARS if fits else ())
        if self.device.type == "cpu":  # what is left still points into the file, and keeps all of it mapped
            for parameter in self.network.parameters():
                parameter.data = parameter.data.clone()
        self.fused = FusedDecoder(self.network) if fits else None
        if fits and self.device.type == "cuda" and os.environ.get("DRAY_GRAPHS", "on") != "off":
            self.graphs = ForwardGraphs(self._run_fused, cuda_recorder())

    def prefill(self, slots: Seq[int], token_ids: Seq[Seq[int]], starts: Seq[int] | None = None) -> None:
        """Write the keys and values of each row's tokens into its slot, from its start (0 by default) on; no logits.

        Rows go end to end, longest first, into forwards of at most `PREFILL_TOKENS` tokens. Attention by torch
        runs over the rectangle of rows x longest row, so rows much shorter than the longest go into the next forward.
        """
        for batch in batches(slots, token_ids, starts, self._goes_with):
            self._prefill_batch(batch)

    def _goes_with(self, row: list[int], batch: list[Piece]) -> bool:
        runs_kernels = self.fused is not None and self.fused.kernels is not None
        return may_go_with(row, batch, packs_rows=self.packs_rows, is_fused=runs_kernels)

    def _prefill_batch(self, batch: list[Piece]) -> None:
        width = len(batch[0].tokens)
        tokens_BT = to_device([row + [0] * (width - len(row)) for row, _, _ in batch], self.device)
        self.forward(
            [first for _, _, first in batch],
            tokens_BT,
            tokens_BT.new_zeros(len(batch), 0),
            slots=[slot for _, slot, _ in batch],
            lengths=[len(row) for row, _, _ in batch],
        )

    @torch.inference_mode()
    def forward(
        self,
        starts: Seq[int],
        token_ids_BT: torch.Tensor,
        logits_at_BJ: torch.Tensor,
        slots: Seq[int] | None = None,
        lengths: Seq[int] | None = None,
    ) -> torch.Tensor:
        """Logits [B, J, V] at the given token indexes of each row (0..T-1), after writing the rows' keys and values.

        Row b's tokens stand at positions starts[b], starts[b] + 1, ... of its slot (by default slot b) and see
        everything before them there. Row b has its first `lengths[b]` tokens (by default all): ragged rows are packed
        end to end, so that what is not there costs nothing; logits beyond a row's tokens are those of its last one.
        """
        assert self.cache is not None, "allocate() comes first"
        starts_B = to_device(starts, self.device)
        packing = (
            Packing.of(lengths, self.device, token_ids_BT.shape[1]) if lengths is not None and self.packs_rows else None
        )
        slots_B = None if slots is None or list(slots) == list(range(len(slots))) else to_device(slots, self.device)
        num_tokens = token_ids_BT.shape[1]
        positions_BT = starts_B[:, None] + torch.arange(num_tokens, device=self.device)
        plan = self.cache.plan(slots_B, positions_BT, max(starts) + num_tokens, packing)
        if self.max_positions is not None:
            positions_BT = positions_BT.clamp(max=self.max_positions - 1)
        tokens_N, positions_N, wanted_BJ = token_ids_BT.flatten(), positions_BT.flatten(), logits_at_BJ
        if packing is not None:
            tokens_N, positions_N = tokens_N[packing.packed_N], positions_N[packing.packed_N]
            wanted_BJ = packing.unpacked_BT.gather(1, logits_at_BJ)
        if self.fused is not None:
            if packing is None:
                wanted_BJ = logits_at_BJ + torch.arange(0, len(tokens_N), num_tokens, device=self.device)[:, None]
            run = self._run_fused if self.graphs is None else self.graphs.run
            logits_MV = run(Inputs(tokens_N, positions_N, wanted_BJ, plan), self.cache)
            return logits_MV.view(*logits_at_BJ.shape, self.vocab_size)
        arguments: dict[str, Any] = {"past_key_values": self.cache, "use_cache": True}
        if packing is None:
            return self._logits(token_ids_BT, positions_BT, logits_at_BJ, **arguments)
        wanted_1J = wanted_BJ.flatten()[None]
        logits_1JV = self._logits(tokens_N[None], positions_N[None], wanted_1J, slot_plan=plan, **arguments)
        return logits_1JV.view(*logits_at_BJ.shape, self.vocab_size)

    @torch.inference_mode()
    def plain_logits(self, token_ids: Seq[int]) -> torch.Tensor:
        """Logits [V] after `token_ids`, from one forward without any cache: a function of the tokens alone."""
        tokens_1T = to_device([list(token_ids)], self.device)
        positions_1T = torch.arange(len(token_ids), device=self.device)[None]
        last_11 = positions_1T[:, -1:]
        return self._logits(tokens_1T, positions_1T, last_11, use_cache=False)[0, 0]

    def seconds(self, num_rows: int, num_tokens: int) -> float:
        """As `Target.seconds`."""
        assert self.cache is not None
        start = max(0, min(_TIMED_START, self.cache.num_positions - num_tokens))
        tokens_BT = torch.zeros(num_rows, num_tokens, dtype=torch.int64, device=self.device)
        every_BT = torch.arange(num_tokens, device=self.device).expand(num_rows, -1)
        synchronize(self.device)
        started = time.perf_counter()
        self.forward([start] * num_rows, tokens_BT, every_BT)
        synchronize(self.device)
        return time.perf_counter() - started

    def _run_fused(self, inputs: Inputs, cache: KVCache) -> torch.Tensor:
        assert self.fused is not None
        return self.fused.forward(inputs.tokens_N, inputs.positions_N, inputs.wanted_BJ.flatten(), cache, inputs.plan)

    def _logits(
        self, token_ids_BT: torch.Tensor, positions_BT: torch.Tensor, logits_at_BJ: torch.Tensor, **kwargs: Any
    ) -> torch.Tensor:
        self._wanted.logits_at_BJ = logits_at_BJ
        try:
            output = self.network(input_ids=token_ids_BT, position_ids=positions_BT, **kwargs)
        finally:
            self._wanted.logits_at_BJ = None
        logits_BJV: torch.Tensor = output.logits
        return logits_BJV

    def _keep_wanted_positions(self, head: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """Run before the output head: it then multiplies only the positions somebody wants."""
        hidden_BTH, *rest = args
        logits_at_BJ = self._wanted.logits_at_BJ
        if logits_at_BJ is None:
            return args
        index_BJH = logits_at_BJ[:, :, None].expand(-1, -1, hidden_BTH.shape[-1])
        return (hidden_BTH.gather(1, index_BJH), *rest)


def load_network(
    path: str,
    device: Device,
    dtype: DType,
    network_class: Callable[[PretrainedConfig], Any] | None = None,
    num_ranks: int = 1,
) -> tuple[PreTrainedModel, frozenset[int]]:
    """The network at `path` with its weights, and the token ids that end a text; as `LanguageModel.load`.

    `network_class` says which class to make of the configuration; transformers' own unless given. With `num_ranks`
    above 1, this process's share of the weights (`decoding/rank.py` comes first).
    """
    path = model_folder(path)
    config = load_config(path)
    place = pick_device(device)
    wanted = getattr(torch, dtype) if dtype != "auto" else torch.float32 if place.type == "cpu" else "auto"
    _refuse_coarse_float32(path, wanted, place)
    transformers_logging.disable_progress_bar()
    loader = AutoModelForCausalLM if network_class is None else network_class(config)
    try:
        model, report = loader.from_pretrained(
            path,
            config=config,
            dtype=wanted,
            attn_implementation="eager",  # until ours is installed
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
            **({"distributed_config": DistributedConfig(tp_size=num_ranks)} if num_ranks > 1 else {}),
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise ValueError(f"cannot load the model at {path!r}: {error}") from error
    missing = sorted(report["missing_keys"])
    if missing:  # transformers would fill them with random numbers
        raise ValueError(f"the weights in {path!r} lack {len(missing)} tensors of the model, first {missing[0]!r}")
    return model if num_ranks > 1 else model.to(place), _eos_token_ids(path, model)


def _refuse_coarse_float32(path: str, dtype: torch.dtype | str, device: torch.device) -> None:
    """Raise a ValueError if float32 matrix products are set to round as bfloat16 or TF32: equality would be lost."""
    if dtype is not torch.float32:
        return
    precision = torch.get_float32_matmul_precision()
    if precision != "highest" or (device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32):
        raise ValueError(
            f"{path!r} is to run in float32, but torch multiplies float32 with less (float32_matmul_precision is "
            f"{precision!r}, or TF32 is allowed), so that batches would change the text; set it to 'highest', "
            "or choose dtype bfloat16 knowingly"
        )


def _eos_token_ids(path: str, model: PreTrainedModel) -> frozenset[int]:
    try:
        generation = GenerationConfig.from_pretrained(path)
    except OSError:
        generation = model.generation_config
    ids = (
        generation.eos_token_id if generation.eos_token_id is not None else model.config.get_text_config().eos_token_id
    )
    return frozenset([ids] if isinstance(ids, int) else ids or ())
