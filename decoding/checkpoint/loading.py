"""A transformers network with its weights, from its folder or its hub name; or a ValueError saying why not.

Its footprint, the memory that it takes on its device, is known from its configuration before anything is loaded.
"""

import logging
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoModelForCausalLM, PretrainedConfig
from transformers.utils import logging as transformers_logging

from decoding.checkpoint.fp8_format import dtype_beside_fp8, fp8_class, fp8_format
from decoding.checkpoint.generation import end_token_ids, generation_of
from decoding.checkpoint.gguf_file import origin_in_words
from decoding.checkpoint.layer_subset import changed_class, whole_class
from decoding.checkpoint.model_files import codes_in, is_packed, packed_tensors, tensors_in, weight_files
from decoding.checkpoint.quantized.words import without_format
from decoding.checkpoint.supported import NETWORK_FAILURES, in_one_line, load_config, model_folder
from decoding.choices import Device
from decoding.choices import DType as DType
from decoding.codes.left_weight import leave_weight
from decoding.codes.packed_tensors import PackedTensor
from decoding.codes.weight import Codes
from decoding.device import pick_device
from decoding.fp8 import exact
from decoding.fp8.linear import arithmetic_on, weights_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

GIB = 2**30
_log = logging.getLogger(__name__)


def load_network(
    path: str,
    device: Device,
    dtype: DType,
    network_class: Any = None,
    num_ranks: int = 1,
    tensors: Mapping[str, Any] | None = None,
    *,
    in_codes: bool = False,
) -> tuple["PreTrainedModel", frozenset[int]]:
    """Load the network at `path` and the token ids that end a text. Raises ValueError saying why it cannot be loaded.

    Only safetensors are read, and remote code is never run. `auto` is CUDA if there is one; as a dtype it is float32 on
    CPU for a checkpoint without FP8 weights, otherwise the checkpoint's own. `network_class` is that of a part of the
    model, by default the whole. With `num_ranks` above 1 this process, which has joined the others
    (`decoding/checkpoint/rank.py`), loads its share of the weights. Given `tensors` replace those of the files.
    With `in_codes` weights of codes that can be multiplied as they are stay in their files (`leave_weight`).
    """
    path = model_folder(path)
    config = load_config(path)
    place = pick_device(device)
    wanted = getattr(torch, dtype) if dtype != "auto" else torch.float32 if place.type == "cpu" else "auto"
    if (form := fp8_format(config)) is not None:
        wanted = getattr(torch, dtype_beside_fp8(config, dtype, path))
        try:
            arithmetic = arithmetic_on(place)
        except ValueError as error:
            raise ValueError(f"{path!r} has FP8 weights, which {error}") from error
        network_class = fp8_class(network_class or whole_class(config), form, arithmetic)
        config = without_format(config)
    precision = torch.get_float32_matmul_precision()
    is_coarse = precision != "highest" or (place.type == "cuda" and torch.backends.cuda.matmul.allow_tf32)
    if wanted is torch.float32 and is_coarse:  # as bfloat16 or TF32: equality would be lost
        raise ValueError(
            f"{path!r} is to run in float32, but torch multiplies float32 with less (float32_matmul_precision is "
            f"{precision!r}, or TF32 is allowed), so that batches would change the text; set it to 'highest', "
            "or choose dtype bfloat16 knowingly"
        )
    # As `generate` would load it: there are models whose implementations of attention compute different things. Instead
    # of one of another package it is transformers' default.
    named = config._attn_implementation if config._attn_implementation in {"eager", "sdpa"} else None
    transformers_logging.disable_progress_bar()
    source: dict[str, Any] = {"pretrained_model_name_or_path": path, "use_safetensors": True}
    packed, tied = packed_tensors(path), dict[str, str]()
    if packed or (place.type == "cpu" and num_ranks == 1):  # a mapped file would be in memory beside what is made of it
        wanted = getattr(config, "dtype", None) or torch.bfloat16 if wanted == "auto" else wanted
        state = _stored(path, packed) if tensors is None else dict(tensors)
        source = {"pretrained_model_name_or_path": None, "state_dict": state}
        is_left = in_codes and place.type == "cpu" and wanted is torch.float32
        leave = partial(_leave_weights, state=state, codes=codes_in(path) if is_left else {}, tied=tied)
        network_class = changed_class(network_class or whole_class(config), leave)
        source["generation_config"] = generation_of(path, config)
    if num_ranks > 1:
        from transformers.distributed import DistributedConfig  # loads networks' code, which planning does not need

        source["distributed_config"] = DistributedConfig(tp_size=num_ranks)
    try:
        model, report = (network_class or AutoModelForCausalLM).from_pretrained(
            config=config,
            dtype=wanted,
            attn_implementation=named,
            trust_remote_code=False,
            output_loading_info=True,
            **source,
        )
    except (*NETWORK_FAILURES, SafetensorError) as error:
        raise ValueError(f"cannot load the model at {path!r}: {in_one_line(error)}") from error
    missing = sorted(report["missing_keys"])
    if missing:  # transformers would fill them with random numbers
        raise ValueError(f"the weights in {path!r} lack {len(missing)} tensors of the model, first {missing[0]!r}")
    surplus = sorted(report["unexpected_keys"])
    # Layers behind the last one that begin with a projection of two states are an MTP head: no part of the text.
    own_head = [name.removesuffix("eh_proj.weight") for name in surplus if name.endswith(".eh_proj.weight")]
    surplus = [name for name in surplus if not name.startswith(tuple(own_head))]
    # AutoGPTQ gave zeros as a bias to layers that have none.
    biases = [name for name in surplus if f"{name.removesuffix('.bias')}.weight" in packed]
    surplus = [name for name in surplus if name not in biases or bool(source["state_dict"][name][...].any())]
    if surplus:  # transformers would drop them
        raise ValueError(
            f"the weights in {path!r} have {len(surplus)} tensors for which {type(model).__name__} has no place, first "
            f"{surplus[0]!r}: without them the text would be another model's; correct model_type in config.json "
            f"(it says {config.model_type!r}), or save the model again with the class that it was trained with"
        )
    model.name_or_path = model.config.name_or_path = path
    model.all_tied_weights_keys = tied or model.all_tied_weights_keys
    if tensors is None:
        _refuse_odd_modules(model, path, packed)
    model.named_attention = named  # with which the probe compares (`default_attention`)
    return model if num_ranks > 1 else model.to(place), end_token_ids(model)


class _Weight:
    """A weight that is read, and dequantized, when transformers takes it, as it takes a slice of a file."""

    def __init__(self, read: Callable[[], torch.Tensor]) -> None:
        self._read = read

    def __getitem__(self, index: Any) -> torch.Tensor:
        return self._read()[index]


def _stored(path: str, packed: Mapping[str, PackedTensor]) -> dict[str, _Weight]:
    """Return the weights of a folder, of which some may be packed, by the names that they have when they are not."""
    parts = {name for tensor in packed.values() for name, _ in tensor.files}
    plain = {name: file for file in weight_files(Path(path)) for name in tensors_in(file) if name not in parts}
    # To read the head of a file takes milliseconds. The class of the network keeps this, so few stay open.
    opened: Any = lru_cache(maxsize=4)(partial(safe_open, framework="pt", backend="pread"))

    def read(name: str, file: str) -> torch.Tensor:
        try:
            tensor: torch.Tensor = opened(file).get_tensor(name)
        except SafetensorError as error:
            raise ValueError(f"cannot read from {file!r}: {error}") from error
        return tensor

    found = {name: _Weight(partial(read, name, str(file))) for name, file in plain.items()}
    return found | {name: _Weight(tensor.dequantized) for name, tensor in packed.items()}


def _refuse_odd_modules(network: "PreTrainedModel", path: str, packed: Mapping[str, PackedTensor]) -> None:
    """Raise a ValueError for a packed weight of a module that is no linear layer: its order is not known."""
    for name, module in network.named_modules():
        is_odd = f"{name}.weight" in packed and not isinstance(module, torch.nn.Linear)
        if is_odd and hasattr(module, "weight"):  # not on another stage
            raise ValueError(
                f"{path!r} has packed weights of {name!r}, a {type(module).__name__}, and those of linear layers are "
                "read; use the original checkpoint"
            )


def _leave_weights(
    network: "PreTrainedModel", state: dict[str, Any], codes: Mapping[str, Codes], tied: dict[str, str]
) -> None:
    """Take the weights that have codes out of a network and of what it is filled with, before it is.

    What is tied is told in `tied`; transformers ties what is there of it.
    """
    places = {codes[name]: (codes[name], weight) for name, weight in state.items() if name in codes}
    for module_name, module in network.named_modules():
        own = codes.get(name := f"{module_name}.weight")
        if own in places and isinstance(module, torch.nn.Linear | torch.nn.Embedding):
            of_all, weight = places[own]  # of tied weights there is one
            if of_all.shape == tuple(module.weight.shape):
                leave_weight(module, of_all, partial(weight.__getitem__, ...))
                state.pop(name, None)
    tied.update(network.all_tied_weights_keys)
    here = {name for name, _ in network.named_parameters(remove_duplicate=False)}
    network.all_tied_weights_keys = {name: other for name, other in tied.items() if {name, other} <= here}


def made_of(folder: str, dtype: str, *, is_coded: bool) -> str:
    """Return what the weights of a model folder are made of, to be put behind other words; nothing of plain ones.

    With `is_coded` codes are multiplied as they are.
    """
    if not is_packed(folder):
        return origin_in_words(folder, is_coded=is_coded)
    layout = next(iter(packed_tensors(folder).values())).layout
    weights = f"{layout.num_bits} bits ({layout.method})"
    return f", weights of {weights} as they are" if is_coded else f", dequantized from {weights} to {dtype}"


_WITHOUT_KEYS = {"linear_attention", "conv", "mamba", "recurrent", "moe", "mlp"}  # layers that keep no keys


@dataclass(frozen=True)
class Footprint:
    """Numbers of bytes. What a forward needs for a moment depends on device and shapes, and is not included."""

    weights: int
    cache_per_token: int  # keys and values of one token in one slot, over all layers
    num_slots: int
    max_model_len: int
    states_per_slot: int = 0  # what recurrent layers keep of one row, for all lengths to which it can be rolled back
    recorded: int = 0  # on a GPU: recordings, and the logits that they write

    @property
    def cache(self) -> int:
        """Bytes of keys and values of all slots, each with a spare position beyond its end, and of their states."""
        return self.num_slots * (self.cache_per_token * (self.max_model_len + 1) + self.states_per_slot)

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.recorded

    def __str__(self) -> str:
        return (
            f"{self.total / GIB:.2f} GiB (weights {self.weights / GIB:.2f}, cache {self.cache / GIB:.2f} for "
            f"{self.num_slots} slots of {self.max_model_len} tokens"
            + (f", recordings {self.recorded / GIB:.2f})" if self.recorded else ")")
        )


def footprint_of(
    config: PretrainedConfig, dtype: str, num_slots: int, max_model_len: int, num_draft_tokens: int = 0
) -> Footprint:
    """Return the footprint of a model if weights and cache have this dtype (float32, bfloat16, float16).

    At most `num_draft_tokens` of a row are drafted in a round. FP8 weights stay FP8. The network is built without its
    weights, on torch's meta device. Raises a ValueError for a checkpoint that is quantized in another way.
    """
    kind: torch.dtype = getattr(torch, dtype)
    with torch.device("meta"):  # tensors have shapes and dtypes, and no numbers
        form, config = fp8_format(config), without_format(deepcopy(config))
        if form is None:
            network = AutoModelForCausalLM.from_config(config, dtype=kind, trust_remote_code=False)
        else:
            network = fp8_class(whole_class(config), form, exact)(config)
    for parameter in network.parameters():
        parameter.data = parameter.data.to(kind)
    return Footprint(
        weights=sum(weight.numel() * weight.element_size() for weight in weights_of(network)),
        cache_per_token=numbers_of_a_token(config) * kind.itemsize,
        num_slots=num_slots,
        max_model_len=max_model_len,
        states_per_slot=_state_bytes(network, num_draft_tokens),
    )


def _state_bytes(network: "PreTrainedModel", num_draft_tokens: int) -> int:
    from decoding.states.shapes import state_bytes  # of a network that is there; planning needs none

    try:
        return state_bytes(network, num_draft_tokens)
    except NETWORK_FAILURES as error:
        text = "%s: the memory of its states is not known before it runs (%s), and the plan leaves it out"
        _log.warning(text, type(network).__name__, error)
        return 0


def cache_of(config: PretrainedConfig, dtype: str, num_slots: int, max_model_len: int) -> int:
    """Return the bytes of keys and values of a model, however its weights are stored."""
    per_token = numbers_of_a_token(config) * getattr(torch, dtype).itemsize
    return Footprint(0, per_token, num_slots, max_model_len).cache


def numbers_of_a_token(config: PretrainedConfig) -> int:
    """Return how many numbers a slot of a model holds of a token: its keys and values in all layers."""
    text = config.get_text_config()
    if getattr(text, "is_heterogeneous", False):  # Gemma 4: layers differ in size, and the last ones may own no keys
        num_owners = text.num_hidden_layers - (getattr(text, "num_kv_shared_layers", None) or 0)
        owners = [text.per_layer_config[index] for index in range(num_owners)]
        return int(2 * sum(each.num_key_value_heads * each.head_dim for each in owners))
    kinds = getattr(text, "layer_types", None) or getattr(text, "layers_block_type", None)
    kinds = kinds or ["full_attention"] * text.num_hidden_layers
    return sum(_numbers_in_a_layer(text, kind) for kind in kinds if kind not in _WITHOUT_KEYS)


def _numbers_in_a_layer(text: Any, kind: str) -> int:
    if latent_size := getattr(text, "kv_lora_rank", None):  # from which keys and values of all heads are computed again
        return int(latent_size + text.qk_rope_head_dim)
    has_one = getattr(text, "multi_query", False) and not getattr(text, "new_decoder_architecture", False)  # Falcon
    heads = getattr(text, "num_key_value_heads", None) or (1 if has_one else text.num_attention_heads)
    if text.model_type == "mimo_v2_flash" and kind == "sliding_attention":  # as its attention has it, in no field
        heads *= 2
    key_size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return int(heads * (key_size + (getattr(text, "v_head_dim", None) or key_size)))
