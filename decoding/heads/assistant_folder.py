"""The folder of a Gemma 4 assistant: whether it fits its target, the memory that it takes, and its tensors.

An assistant (`gemma4_assistant`, `gemma4_unified_assistant`) is four layers with queries alone. Their keys and values
are those of two layers of its target: the last ones of each kind, sliding and full, that own a cache. What the
configuration says and is not read here is refused by name, since a draft that ignores it drafts in vain, without error.

Source: transformers 5.23, models/gemma4_assistant and generation/candidate_generator.py
(`SinglePositionMultiTokenCandidateGenerator`). Its model class cannot be built there, since `kv_sharing_modes` refuses
a model in which all layers share their keys.
"""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import PretrainedConfig

from decoding.checkpoint.loading import Footprint
from decoding.checkpoint.model_files import read_json, tensors_in, weight_files
from decoding.checkpoint.supported import check_same_vocabulary, model_folder, read_config, rope_parameters

_TARGETS = ("gemma4_text", "gemma4_unified_text")
_KINDS = ("sliding_attention", "full_attention")
_NAMES = ("architectures", "dtype", "torch_dtype", "model_type", "transformers_version", "_name_or_path")
_READ = (*_NAMES, "output_attentions", "global_head_dim", "num_global_key_value_heads", "per_layer_config")
_NO_NUMBERS = ("_token_id", "_token_index")  # of images and sounds: such fields are no part of a forward
# Fields that change what an assistant computes, and the values with which they change nothing.
_UNCHANGED: dict[str, tuple[object, ...]] = {
    "hidden_size_per_layer_input": (0,),
    "vocab_size_per_layer_input": (0,),
    "enable_moe_block": (False,),
    "use_double_wide_mlp": (False,),
    "attention_bias": (False,),
    "final_logit_softcapping": (None,),
    "use_bidirectional_attention": (None, "vision"),
    "num_experts": (None,),
    "moe_intermediate_size": (None,),
    "top_k_experts": (None,),
}
_ROPES = ("default", "proportional")


@dataclass(frozen=True)
class Assistant:
    """What an assistant's folder says, and the layers of its target whose keys and values it reads."""

    folder: Path
    config: PretrainedConfig
    layer_ids: tuple[int, ...]  # of the target, for each of its own layers

    def __str__(self) -> str:
        layers = ", ".join(map(str, sorted(set(self.layer_ids))))
        return f"assistant; {self.config.get_text_config().vocab_size:,} tokens, reads the keys of layers {layers}"

    def footprint(self, dtype: str, num_slots: int, max_model_len: int) -> Footprint:
        """Return its memory, in which nothing is a cache: it reads in its target's slots."""
        shapes = (shape for file in weight_files(self.folder) for _, shape in tensors_in(file).values())
        num_bytes = sum(torch.Size(shape).numel() for shape in shapes) * getattr(torch, dtype).itemsize
        return Footprint(num_bytes, 0, num_slots, max_model_len)

    def tensors(self, expected: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the tensors of these names and shapes, of which `lm_head.weight` may be the embedding's.

        Raises ValueError, in one line that names the folder, for tensors that are missing, unknown, of another shape,
        or not finite, and for an order of tokens that does not have each once.
        """
        found = {name: tensor for file in weight_files(self.folder) for name, tensor in load_file(file).items()}
        embedding = found.pop("model.embed_tokens.weight", None)
        if embedding is not None and self.config.tie_word_embeddings:
            found["lm_head.weight"] = embedding
        for wrong, names in (("lacks", expected.keys() - found.keys()), ("has no use for", found.keys() - expected.keys())):
            if names:
                raise ValueError(f"{str(self.folder)!r} {wrong} the tensor {min(names)!r} ({len(names)} in all)")
        for name, tensor in found.items():
            if tensor.shape != expected[name].shape:
                shapes = f"{list(tensor.shape)}, expected {list(expected[name].shape)} by its config.json"
                raise ValueError(f"{str(self.folder)!r} has {name!r} of shape {shapes}")
            if tensor.is_floating_point() and not tensor.isfinite().all():
                raise ValueError(f"{str(self.folder)!r} has values in {name!r} that are not finite")
        order_V = found.get("masked_embedding.token_ordering")
        if order_V is not None and not order_V.long().sort().values.equal(torch.arange(len(order_V))):
            raise ValueError(f"{str(self.folder)!r} does not have each token once in its token_ordering")
        return found


def fitting_assistant(path: str, target_config: PretrainedConfig, target_path: str) -> Assistant:
    """Return the assistant in the folder or hub model `path`, of which no weight is read.

    Raises ValueError, in one line that names the folder, if it belongs to another target, or says what is not read.
    """
    folder = Path(model_folder(path))
    said, target = read_json(folder / "config.json"), target_config.get_text_config()
    config = read_config(str(folder))
    own: Any = config.get_text_config()
    try:
        _refuse_unread(said, config, own)
        if target.model_type not in _TARGETS:
            raise ValueError(f"is an assistant of Gemma 4, and {target_path!r} is of type {target.model_type}")
        for name, ours, theirs in (
            ("a hidden size", config.backbone_hidden_size, target.hidden_size),
            ("a vocabulary", own.vocab_size, target.vocab_size),
        ):
            if ours != theirs:
                raise ValueError(f"was trained for a target with {name} of {ours}, and {target_path!r} has {theirs}")
        layer_ids = _layers_to_read(own, target, target_path)
    except ValueError as error:
        raise ValueError(f"{str(folder)!r} {error}; name the assistant of this target, or another draft") from error
    check_same_vocabulary(target_path, str(folder), target.vocab_size, own.vocab_size)
    return Assistant(folder, config, layer_ids)


def _refuse_unread(said: dict[str, Any], config: PretrainedConfig, own: PretrainedConfig) -> None:
    for part, given, known in (
        ("", said, _fields(config)),
        ("text_config.", said.get("text_config") or {}, _fields(own) | _UNCHANGED.keys()),
    ):
        unread = sorted(name for name in given.keys() - known if not name.endswith(_NO_NUMBERS))
        if unread:
            raise ValueError(f"says {part}{unread[0]} {given[unread[0]]!r}, which is not read here")
        for name in given.keys() & _UNCHANGED.keys():
            if given[name] not in _UNCHANGED[name]:
                raise ValueError(f"says {part}{name} {given[name]!r}, with which assistants do not draft here")
    if own.num_kv_shared_layers not in (0, own.num_hidden_layers):
        raise ValueError(
            f"says text_config.num_kv_shared_layers {own.num_kv_shared_layers} of {own.num_hidden_layers} layers: in an "
            "assistant all layers read their target's keys"
        )
    for parameters in rope_parameters(own):
        if parameters.get("rope_type") not in _ROPES:
            raise ValueError(f"says rope_type {parameters.get('rope_type')!r}, with which assistants do not draft here")
    if config.use_ordered_embeddings and (
        own.vocab_size % config.num_centroids or config.centroid_intermediate_top_k > config.num_centroids
    ):
        raise ValueError(
            f"says num_centroids {config.num_centroids} and centroid_intermediate_top_k "
            f"{config.centroid_intermediate_top_k}, which do not divide a vocabulary of {own.vocab_size}"
        )


def _fields(config: PretrainedConfig) -> set[str]:
    return {each.name for each in fields(config)} | set(_READ)  # type: ignore[arg-type]


def _layers_to_read(own: Any, target: Any, target_path: str) -> tuple[int, ...]:
    """Return for each layer the last one of its kind in the target that owns a cache."""
    num_owners = target.num_hidden_layers - (target.num_kv_shared_layers or 0)
    last_of_kind = {kind: index for index, kind in enumerate(target.layer_types[:num_owners])}
    layer_ids = []
    for index, kind in enumerate(own.layer_types):
        if kind not in _KINDS or kind not in last_of_kind:
            raise ValueError(f"has a layer of kind {kind!r}, and {target_path!r} has none whose keys it could read")
        layer_ids.append(last_of_kind[kind])
        ours, theirs = own.per_layer_config[index], target.per_layer_config[layer_ids[-1]]
        for name in ("head_dim", "num_key_value_heads"):
            if getattr(ours, name) != getattr(theirs, name):
                raise ValueError(
                    f"has {name} {getattr(ours, name)} in its layer {index} ({kind}), and layer {layer_ids[-1]} of "
                    f"{target_path!r} has {getattr(theirs, name)}"
                )
        if own.num_attention_heads % ours.num_key_value_heads:
            raise ValueError(f"has {own.num_attention_heads} heads over {ours.num_key_value_heads} heads of keys")
    return tuple(layer_ids)
