"""The folder of a Gemma 4 assistant: whether it fits its target, the memory that it takes, and its tensors.

An assistant (`gemma4_assistant`, `gemma4_unified_assistant`) is four layers with queries alone. Their keys and values
are those of two layers of its target: the last ones of each kind, sliding and full, that own a cache. What its
config.json says and is not read here is refused by name: a draft that ignores it would draft in vain, without an error.

Source: transformers 5.23, models/gemma4_assistant. Its own class cannot be built there, since `kv_sharing_modes`
refuses a model in which all layers share their keys.
"""

from dataclasses import dataclass, fields
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import PretrainedConfig

from decoding.checkpoint.model_files import read_json, tensors_in, weight_files
from decoding.checkpoint.supported import model_folder, read_config
from decoding.heads.fit import check_sizes

_TARGETS = ("gemma4_text", "gemma4_unified_text")
# Fields that change what an assistant computes unless they are 0, false or null.
_OFF = {
    "attention_bias", "enable_moe_block", "final_logit_softcapping", "hidden_size_per_layer_input",
    "moe_intermediate_size", "num_experts", "quantization_config", "top_k_experts", "use_double_wide_mlp",
    "vocab_size_per_layer_input",
}  # fmt: skip
_ALSO_READ = _OFF | {
    "_name_or_path", "global_head_dim", "model_type", "num_global_key_value_heads", "output_attentions",
    "per_layer_config", "torch_dtype",
}  # fmt: skip
_OF_IMAGES_AND_SOUNDS = ("_token_id", "_token_index")


@dataclass(frozen=True)
class Assistant:
    """What an assistant's folder says, and the layers of its target whose keys and values it reads."""

    folder: Path
    config: Any
    layer_ids: tuple[int, ...]  # of the target, for each of its own layers

    def __str__(self) -> str:
        return f"assistant; reads the keys of layers {', '.join(map(str, sorted(set(self.layer_ids))))}"

    @property
    def num_weights(self) -> int:
        """How many numbers its weights are. It has no slots: it reads in its target's."""
        return sum(prod(shape) for file in weight_files(self.folder) for _, shape in tensors_in(file).values())

    def tensors(self, expected: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return tensors of these names and shapes; the output layer may be the embedding, which has no other use.

        Raises ValueError, in one line that names the folder and a tensor, if they are not what config.json says.
        """
        found = {name: tensor for file in weight_files(self.folder) for name, tensor in load_file(file).items()}
        embedding = found.pop("model.embed_tokens.weight", None)
        if embedding is not None and self.config.tie_word_embeddings:
            found["lm_head.weight"] = embedding
        for name in sorted(expected.keys() | found.keys()):
            wanted, tensor = (list(each[name].shape) if name in each else None for each in (expected, found))
            if wanted != tensor:
                shapes = f"{tensor or 'missing'}, and by its config.json it is {wanted or 'not expected'}"
                raise ValueError(
                    f"the shape of {name!r} in {str(self.folder)!r} is {shapes}; copy or download it again"
                )
            if found[name].is_floating_point() and not found[name].isfinite().all():
                raise ValueError(f"{str(self.folder)!r} has values in {name!r} that are not finite")
        order_V = found.get("masked_embedding.token_ordering")
        if order_V is not None and not order_V.long().sort().values.equal(torch.arange(len(order_V))):
            raise ValueError(f"{str(self.folder)!r} does not have each token once in its token_ordering")
        return found


def fitting_assistant(path: str, target_config: PretrainedConfig, target_path: str) -> Assistant:
    """Return the assistant in the folder or hub model `path`, of which no weight is read.

    Raises ValueError, in one line that names the folder, if it belongs to another target, or says what is not read.
    """
    folder, target = Path(model_folder(path)), target_config.get_text_config()
    said, config = read_json(folder / "config.json"), read_config(str(folder))
    try:
        _refuse_unread(said, config)
        if target.model_type not in _TARGETS:
            raise ValueError(f"is an assistant of Gemma 4, and {target_path!r} is of type {target.model_type}")
        own: Any = config.get_text_config()
        layer_ids = _layers_to_read(own, target, target_path)
    except ValueError as error:
        raise ValueError(f"{str(folder)!r} {error}; name the assistant of this target, or another draft") from error
    check_sizes(str(folder), (config.backbone_hidden_size, own.vocab_size), target_config, target_path)
    return Assistant(folder, config, layer_ids)


def new_assistant(target_config: PretrainedConfig, target_path: str) -> tuple[Any, tuple[int, ...]]:
    """Return the configuration of a new assistant of one layer for a target, and the layer whose keys that reads.

    Its hidden size is an eighth of the target's, 64 at least. Raises ValueError, in one line, for another family.
    """
    from transformers import Gemma4AssistantConfig, Gemma4TextConfig  # not in older versions

    target: Any = target_config.get_text_config()
    if target.model_type != "gemma4_text":
        raise ValueError(f"assistants are trained for Gemma 4, and {target_path!r} is of type {target.model_type}")
    names = (
        "vocab_size", "num_attention_heads", "attention_k_eq_v", "sliding_window", "max_position_embeddings",
        "rms_norm_eps", "rope_parameters", "hidden_activation", "bos_token_id", "eos_token_id", "pad_token_id", "dtype",
    )  # fmt: skip
    full = target.per_layer_config[target.layer_types.index("full_attention")]
    said = {name: getattr(target, name) for name in names} | {"layer_types": ["full_attention"]}
    said |= dict.fromkeys(("head_dim", "global_head_dim"), full.head_dim)
    said |= dict.fromkeys(("num_key_value_heads", "num_global_key_value_heads"), full.num_key_value_heads)
    size = max(64, target.hidden_size // 8)
    said |= {"hidden_size": size, "intermediate_size": 4 * size, "num_hidden_layers": 1, "num_kv_shared_layers": 1}
    said |= dict.fromkeys(("hidden_size_per_layer_input", "vocab_size_per_layer_input"), 0)
    own = Gemma4TextConfig(**said)
    config = Gemma4AssistantConfig(text_config=own, backbone_hidden_size=target.hidden_size, dtype=target.dtype)
    return config, _layers_to_read(own, target, target_path)


def _refuse_unread(said: dict[str, Any], config: Any) -> None:
    own = config.get_text_config()
    for part, given in ((config, said), (own, said.get("text_config") or {})):
        known = {each.name for each in fields(part)} | _ALSO_READ
        for name, value in given.items():
            is_known = name in known or name.endswith(_OF_IMAGES_AND_SOUNDS)
            if value and (not is_known or name in _OFF):
                raise ValueError(f"says {name} {value!r} in config.json, which is not read here")
    if own.num_kv_shared_layers not in (0, own.num_hidden_layers):
        raise ValueError(f"has layers with keys of their own (num_kv_shared_layers is {own.num_kv_shared_layers})")
    if config.use_ordered_embeddings and own.vocab_size % config.num_centroids:
        raise ValueError(f"has {config.num_centroids} centroids, which do not divide its {own.vocab_size} tokens")
    if config.use_ordered_embeddings and not 1 <= config.centroid_intermediate_top_k <= config.num_centroids:
        best = config.centroid_intermediate_top_k
        raise ValueError(f"takes the {best} best of {config.num_centroids} centroids (centroid_intermediate_top_k)")


def _layers_to_read(own: Any, target: Any, target_path: str) -> tuple[int, ...]:
    """Return for each layer the last one of its kind in the target that owns a cache."""
    owners = target.layer_types[: target.num_hidden_layers - target.num_kv_shared_layers]
    last_of_kind = {kind: layer_id for layer_id, kind in enumerate(owners)}
    for index, kind in enumerate(own.layer_types):
        if kind not in last_of_kind:
            raise ValueError(f"has a layer of kind {kind!r}, and {target_path!r} has none whose keys it could read")
        for name in ("head_dim", "num_key_value_heads"):
            ours = getattr(own.per_layer_config[index], name)
            theirs = getattr(target.per_layer_config[last_of_kind[kind]], name)
            if ours != theirs:
                raise ValueError(f"has {name} {ours} in layers of kind {kind!r}, and {target_path!r} has {theirs}")
        if own.num_attention_heads % own.per_layer_config[index].num_key_value_heads:
            raise ValueError(f"has {own.num_attention_heads} heads, which its heads of keys do not divide")
    return tuple(last_of_kind[kind] for kind in own.layer_types)
