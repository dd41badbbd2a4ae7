"""Families of MTP heads as data: how their tensors are called, and what the layers of a module are.

A module reads pairs, as an EAGLE-3 head does: a state h at position i and the token at position i + 1. It computes
x = W [norm(embedding); norm(h)], its own layers over x with keys and values of their own, and a final norm, from which
the target's output layer gives logits. All families concatenate in this order, and all norms are of the class of the
target's own final norm, so that those which multiply by 1 + w do so here, too. Of the first module h is the target's
state behind its last layer, of the next one what the module before has computed; behind the last the first one goes on.

Sources: vLLM 0.33 (qwen3_next_mtp.py, deepseek_mtp.py, glm4_moe_mtp.py, mimo_v2_mtp.py, nemotron_h_mtp.py), SGLang
0.5.23 (mimo_v2_nextn.py), transformers 5.23 (modeling_layers.py, `MtpModel`).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

Reads = Literal["normed", "stream"]  # states behind final norms, or the residual stream before them


@dataclass(frozen=True)
class Family:
    """The head of a family. `{first}` and `{last}` in a name are the numbers of a module's first and last layer."""

    layer: str  # what the names of a layer's tensors begin with; {} is its number
    ends: tuple[str, str, str, str]  # norm of embeddings, norm of states, projection, final norm
    layer_fields: Mapping[str, Any]  # of the target's configuration, as they are for the layers of one module
    kinds_field: str | None = None  # the field that names the kinds of a module's layers; None: it has one layer
    begins_behind_target: bool = False  # layers are numbered behind those of the target, else from 0 on
    renamed: tuple[str, str] = ("", "")  # a part of a layer, and what transformers calls it
    copies: tuple[str, ...] = ()  # parts of a layer that are the target's own tensors once more
    final_norm: str = "norm"  # as transformers calls it
    reads: tuple[Reads, ...] = ("normed",)  # of several the one with which head and target agree more often is taken
    count_field: str = "num_nextn_predict_layers"  # of config.json: how many modules there are

    def number(self, name: str) -> int | None:
        """Return the number of the layer that a published name belongs to; None if to none."""
        before, after = self.layer.split("{}")
        number = name.removeprefix(before).partition(after)[0]
        return int(number) if name.startswith(before) and number.isdecimal() else None

    def has(self, name: str, begin: int) -> bool:
        """Tell whether a tensor of a target's files is the head's own, whose layers are numbered from `begin` on."""
        if not self.begins_behind_target:
            return name.startswith(self.layer.partition("layers.")[0])
        is_copy = name.partition(".layers.")[2].partition(".")[2].startswith(self.copies)
        return (self.number(name) or 0) >= begin and not is_copy

    def names(self, published: Collection[str], first: int, num_layers: int) -> dict[str, str]:
        """Return the published names of a module's tensors, by those of `ENDS` and of transformers."""
        ends = [end.format(first=first, last=first + num_layers - 1) + ".weight" for end in self.ends]
        found = dict(zip((*ENDS, f"model.{self.final_norm}.weight"), ends, strict=True))
        for name in published:
            number = self.number(name)
            if number is not None and 0 <= number - first < num_layers and name not in ends:
                part = name.removeprefix(self.layer.format(number)).replace(*self.renamed)
                found[f"model.layers.{number - first}.{part}"] = name
        return found

    def published(self, saved: str, first: int) -> str:
        """Return the published name of a tensor of a module's layers, by the one that transformers saves it under."""
        _, _, rest = saved.partition(".layers.")
        number, _, part = rest.partition(".")
        published, own = self.renamed
        return self.layer.format(first + int(number)) + part.replace(own, published)


ENDS = ("embedding_norm", "hidden_norm", "projection")


def _named(prefix: str, *names: str) -> Any:
    return tuple(prefix + name for name in names)


_QWEN = Family(
    layer="mtp.layers.{}.",
    ends=_named("mtp.", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm"),
    layer_fields={"layer_types": ["full_attention"], "mlp_only_layers": []},  # though the target is a hybrid
)
_DEEPSEEK = Family(
    layer="model.layers.{}.",
    ends=_named("model.layers.{first}.", "enorm", "hnorm", "eh_proj", "shared_head.norm"),
    layer_fields={"first_k_dense_replace": 0},  # the layer has experts
    begins_behind_target=True,
    copies=("shared_head.head", "embed_tokens"),
)
_MIMO_V2 = Family(
    layer="model.mtp.layers.{}.",
    ends=_named("model.mtp.layers.{first}.", "enorm", "hnorm", "eh_proj", "final_layernorm"),
    layer_fields={"layer_types": ["sliding_attention"], "mlp_layer_types": ["dense"]},
    renamed=("pre_mlp_layernorm", "post_attention_layernorm"),
    reads=("stream", "normed"),  # the one as SGLang's worker for several modules has it, the other as vLLM has it
)
_NEMOTRON_H = Family(
    layer="mtp.layers.{}.",
    ends=(*_named("mtp.layers.{first}.", "enorm", "hnorm", "eh_proj"), "mtp.layers.{last}.final_layernorm"),
    layer_fields={},
    kinds_field="mtp_layers_block_type",
    final_norm="norm_f",
)
_QWEN3_5 = replace(_QWEN, count_field="mtp_num_hidden_layers")
FAMILIES: dict[str, Family] = {  # by the model type of the target's text
    "deepseek_v3": _DEEPSEEK,
    "glm4_moe": _DEEPSEEK,
    "mimo_v2_flash": _MIMO_V2,
    "nemotron_h": _NEMOTRON_H,
    "qwen3_5_moe_text": _QWEN3_5,
    "qwen3_5_text": _QWEN3_5,
    "qwen3_next": _QWEN,
}
