"""Families of MTP heads as data: how their tensors are called, and what the layers of a module are.

A module reads pairs, as an EAGLE-3 head does: a state h at position i and a token at position i + 1. It computes
x = W [norm(embedding); norm(h)], its own layers over x with keys and values of their own, and a final norm; the
target's output layer gives logits from that. All families concatenate in this order, and all norms are of the class of
the target's own final norm, so that those which multiply by 1 + w do so here, too.

Of the first module h is the target's state behind its last layer, of the next one what the module before has computed.
After the last module the first one goes on. Whether h is taken behind the final norm or before it is the same for the
target's states and the modules' own (`reads`).

Sources: vLLM 0.33 (qwen3_next_mtp.py, deepseek_mtp.py, glm4_moe_mtp.py, mimo_v2_mtp.py, nemotron_h_mtp.py), SGLang
0.5.23 (mimo_v2_nextn.py, multi_layer_eagle_worker), transformers 5.23 (modeling_layers.py, `MtpModel`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Reads = Literal["normed", "stream"]  # the state behind the final norm, or the residual stream before it


@dataclass(frozen=True)
class Family:
    """The head of a family. `{first}` and `{last}` in a name are the numbers of a module's first and last layer."""

    layer: str  # what the names of a layer's tensors begin with; {} is its number
    embedding_norm: str
    hidden_norm: str
    projection: str
    final_norm: str
    layer_fields: Mapping[str, Any]  # of the target's configuration, as they are for the layers of one module
    kinds_field: str | None = None  # the field that names the kinds of a module's layers; None: it has one layer
    begins_behind_target: bool = False  # layers are numbered behind those of the target, else from 0 on
    renamed: Mapping[str, str] = field(default_factory=dict)  # parts of a layer, as transformers calls them
    copies: tuple[str, ...] = ()  # parts of a layer that are the target's own tensors once more
    norm_of_model: str = "norm"  # transformers' name of the final norm
    reads: tuple[Reads, ...] = ("normed",)  # of several the one with which head and target agree more often is taken

    def layer_of(self, name: str) -> int | None:
        """Return the number of the layer that a tensor belongs to, by its published name; None if to none."""
        before, after = self.layer.split("{}")
        number = name.removeprefix(before).partition(after)[0]
        return int(number) if name.startswith(before) and number.isdecimal() else None

    def has(self, name: str, begin: int) -> bool:
        """Tell whether a tensor of a target's files is the head's, whose layers are numbered from `begin` on."""
        number = self.layer_of(name)
        if self.begins_behind_target:
            return number is not None and number >= begin
        return name.startswith(self.layer.partition("layers.")[0])


_QWEN = Family(
    layer="mtp.layers.{}.",
    embedding_norm="mtp.pre_fc_norm_embedding",
    hidden_norm="mtp.pre_fc_norm_hidden",
    projection="mtp.fc",
    final_norm="mtp.norm",
    layer_fields={"layer_types": ["full_attention"], "mlp_only_layers": []},  # though the target is a hybrid
)
_DEEPSEEK = Family(
    layer="model.layers.{}.",
    embedding_norm="model.layers.{first}.enorm",
    hidden_norm="model.layers.{first}.hnorm",
    projection="model.layers.{first}.eh_proj",
    final_norm="model.layers.{last}.shared_head.norm",
    layer_fields={"first_k_dense_replace": 0},  # the layer has experts
    begins_behind_target=True,
    copies=("shared_head.head", "embed_tokens"),
)
_MIMO_V2 = Family(
    layer="model.mtp.layers.{}.",
    embedding_norm="model.mtp.layers.{first}.enorm",
    hidden_norm="model.mtp.layers.{first}.hnorm",
    projection="model.mtp.layers.{first}.eh_proj",
    final_norm="model.mtp.layers.{last}.final_layernorm",
    layer_fields={"layer_types": ["sliding_attention"], "mlp_layer_types": ["dense"]},
    renamed={"pre_mlp_layernorm": "post_attention_layernorm"},
    reads=("stream", "normed"),  # the one as SGLang's worker for several modules has it, the other as vLLM has it
)
_NEMOTRON_H = Family(
    layer="mtp.layers.{}.",
    embedding_norm="mtp.layers.{first}.enorm",
    hidden_norm="mtp.layers.{first}.hnorm",
    projection="mtp.layers.{first}.eh_proj",
    final_norm="mtp.layers.{last}.final_layernorm",
    layer_fields={},
    kinds_field="mtp_layers_block_type",
    norm_of_model="norm_f",
)
FAMILIES: dict[str, Family] = {  # by the model type of the target's text
    "deepseek_v3": _DEEPSEEK,
    "glm4_moe": _DEEPSEEK,
    "mimo_v2_flash": _MIMO_V2,
    "nemotron_h": _NEMOTRON_H,
    "qwen3_5_moe_text": _QWEN,
    "qwen3_5_text": _QWEN,
    "qwen3_next": _QWEN,
}
