"""Families: what the decoder layers of a model family compute, as data that one fused layer reads.

`FAMILIES` is the table, and `described` is its only reader: it looks at a network's configuration and at the names of
its parameters, and returns None for whatever it does not know. Such a network runs transformers' own code.

Norms are computed in float32 and rounded once, like every operation of fused layers. Families differ in whether they
round before the weight is applied (Llama) or behind it (Gemma, OLMo 2, Cohere); in float32 that is the same.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from transformers import PreTrainedModel

from decoding.checkpoint.supported import rope_parameters
from decoding.families.rotary import Pairs
from decoding.fp8.linear import Fp8Linear, may_join

_SPLIT = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
_GATES = {"silu": False, "gelu_pytorch_tanh": True}  # activations, and whether the gate is gelu
_COLUMNS = 32  # in which halves of a product must be whole: a multiple of `kernels.linear_columns` everywhere
_CHANGING_ROPES = {"dynamic", "longrope"}  # whose tables depend on the length of a text


@dataclass(frozen=True)
class Family:
    """The names of a family's parts, and of the fields of a configuration with its numbers; by default Llama's."""

    attention_norm: str | None = "input_layernorm"  # of what the attention reads; None: it reads the stream itself
    after_attention: str | None = None  # of what the attention gives, before it is added
    mlp_norm: str | None = "post_attention_layernorm"
    after_mlp: str | None = None
    is_parallel: bool = False  # the MLP reads what the attention reads
    norm_offset: float = 0.0  # lines are multiplied by this and the weight
    norm_is_centered: bool = False  # the mean is taken off before
    norms_all_heads: bool = False  # the queries of a token are normalized together, and so are its keys
    linears: tuple[tuple[str, ...], tuple[str, ...]] = _SPLIT  # queries, keys, values; gate and up
    windows: Literal["", "every layer", "by layer_types"] = ""  # layers that `sliding_window` is of
    rope: Literal["one", "by layer_types", "no_rope_layers", "sliding layers"] = "one"  # how layers turn
    pairs: Pairs = "halves"
    attention_softcap: str = ""
    residual_multiplier: str = ""
    embedding_scale: Callable[[Any], float] | None = None
    logits_scale: Callable[[Any], float] | None = None
    logits_softcap: str = ""

    @property
    def norms(self) -> tuple[str | None, ...]:
        return self.attention_norm, self.after_attention, self.mlp_norm, self.after_mlp

    def knows(self, name: str) -> bool:
        """Tell whether a parameter of this name is used."""
        norms, attention, mlp = ("|".join(filter(None, names)) for names in (self.norms, *self.linears))
        of_attention = rf"({attention}|o_proj)\.(weight|bias)|[qk]_norm\.weight"
        of_layer = rf"self_attn\.({of_attention})|mlp\.({mlp}|down_proj)\.(weight|bias)|({norms})\.weight"
        return name in _OTHER_PARAMETERS or bool(re.fullmatch(rf"model\.layers\.\d+\.({of_layer})", name))


_OTHER_PARAMETERS = {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}
_QWEN = Family(windows="by layer_types")
_GEMMA = Family(norm_offset=1.0, embedding_scale=lambda config: config.hidden_size**0.5)
_GEMMA_3 = replace(
    _GEMMA,
    after_attention="post_attention_layernorm",
    mlp_norm="pre_feedforward_layernorm",
    after_mlp="post_feedforward_layernorm",
    windows="by layer_types",
    rope="by layer_types",
    logits_softcap="final_logit_softcapping",
)
_OLMO_2 = Family(
    attention_norm=None,
    after_attention="post_attention_layernorm",
    mlp_norm=None,
    after_mlp="post_feedforward_layernorm",
    norms_all_heads=True,
)
_COHERE = Family(
    mlp_norm=None,
    is_parallel=True,
    norm_is_centered=True,
    pairs="neighbours",
    logits_scale=lambda config: config.logit_scale,
)
_GLM = Family(linears=(_SPLIT[0], ("gate_up_proj",)), pairs="neighbours, tables in halves")
FAMILIES = {
    "llama": Family(),
    "mistral": Family(windows="every layer"),
    "qwen2": _QWEN,
    "qwen3": _QWEN,
    "gemma": _GEMMA,
    "gemma2": replace(_GEMMA_3, rope="one", attention_softcap="attn_logit_softcapping"),
    "gemma3_text": _GEMMA_3,  # it has the field of Gemma 2's cap of scores, and no such cap
    "olmo2": _OLMO_2,
    "olmo3": replace(_OLMO_2, windows="by layer_types", rope="by layer_types"),
    "phi3": Family(linears=(("qkv_proj",), ("gate_up_proj",)), windows="every layer"),
    "glm": _GLM,
    "glm4": replace(_GLM, after_attention="post_self_attn_layernorm", after_mlp="post_mlp_layernorm"),
    "granite": Family(
        residual_multiplier="residual_multiplier",
        embedding_scale=lambda config: config.embedding_multiplier,
        logits_scale=lambda config: 1 / config.logits_scaling,
    ),
    "smollm3": Family(windows="by layer_types", rope="no_rope_layers"),
    "cohere": _COHERE,
    "cohere2": replace(_COHERE, windows="by layer_types", rope="sliding layers"),
}


@dataclass(frozen=True)
class LayerKind:
    """What the attention of one layer does otherwise than that of another."""

    window: int = 0  # positions that a query sees of its row, up to its own; 0: all
    rope: int = 0  # the number of its rotary tables


@dataclass(frozen=True)
class Description:
    """What the layers of one network compute."""

    family: Family
    gate_is_gelu: bool
    kinds: tuple[LayerKind, ...]  # of all layers of the model
    ropes: tuple[str | None, ...]  # the layer types whose tables there are; "" if there are none, None: nothing turns
    attention_softcap: float = 0.0  # 0: no cap
    residual_multiplier: float = 1.0
    embedding_scale: float = 1.0
    logits_scale: float = 1.0
    logits_softcap: float = 0.0

    @property
    def is_as_llama(self) -> bool:
        """Whether the layers are Llama's: our GPU kernels and our FP8 products run no others."""
        is_family = replace(self.family, windows="") == Family() and not self.gate_is_gelu
        return is_family and not any(kind.window for kind in self.kinds)


def described(model: PreTrainedModel) -> Description | None:
    """Return what a network computes; None if a parameter or a field is not known, so that it may compute more."""
    config = model.config
    family = FAMILIES.get(config.model_type)
    gate = getattr(config, "hidden_activation", None) or getattr(config, "hidden_act", None)
    if family is None or gate not in _GATES or getattr(config, "use_bidirectional_attention", False):
        return None
    windows = _windows(family, config)
    if windows is None or not all(family.knows(name) for name, _ in model.named_parameters()):
        return None
    if len({parameter.dtype for parameter in model.parameters()}) > 1 or getattr(config, "use_qk_norm", False):
        return None
    if not all(may_join(module, names) for module in model.modules() for names in family.linears):
        return None

    def number(name: str, default: float) -> float:
        return float(getattr(config, name, None) or default) if name else default

    def computed(function: Callable[[Any], float] | None) -> float:
        return 1.0 if function is None else float(function(config))

    turned = _ropes(family, config)
    ropes = tuple(dict.fromkeys(turned))
    found = Description(
        family,
        _GATES[gate],
        tuple(LayerKind(window, ropes.index(rope)) for window, rope in zip(windows, turned, strict=True)),
        ropes,
        number(family.attention_softcap, 0.0),
        number(family.residual_multiplier, 1.0),
        computed(family.embedding_scale),
        computed(family.logits_scale),
        number(family.logits_softcap, 0.0),
    )
    if found.is_as_llama:
        return found
    is_divided = len(family.linears[1]) > 1 or config.intermediate_size % _COLUMNS == 0
    changes = any(each.get("rope_type") in _CHANGING_ROPES for each in rope_parameters(config))
    is_fp8 = any(isinstance(module, Fp8Linear) for module in model.modules())
    return found if is_divided and not changes and not is_fp8 else None


def scale_in(dtype: torch.dtype, scale: float) -> float:
    """Return the scale of embeddings as it is applied, rounded to their dtype: Gemma's code does so."""
    return float(torch.tensor(scale, dtype=dtype))


def _windows(family: Family, config: Any) -> list[int] | None:
    """Return the window of each layer, 0 if it has none; None if the configuration has what the family does not."""
    num_layers, types = config.num_hidden_layers, getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None) or 0
    if family.windows == "by layer_types" and types:
        if not set(types) <= {"full_attention", "sliding_attention"} or ("sliding_attention" in types and not window):
            return None
        return [window if of == "sliding_attention" else 0 for of in types]
    if types and set(types) != {"full_attention"}:
        return None
    if window and family.windows != "every layer":
        return None
    return [window] * num_layers


def _ropes(family: Family, config: Any) -> list[str | None]:
    """Return the tables of each layer, as `Description.ropes` names them."""
    if family.rope == "by layer_types":
        return list(config.layer_types)
    if family.rope == "no_rope_layers":
        return ["" if turns else None for turns in config.no_rope_layers]
    if family.rope == "sliding layers":
        return ["" if of == "sliding_attention" else None for of in config.layer_types]
    return [""] * config.num_hidden_layers
