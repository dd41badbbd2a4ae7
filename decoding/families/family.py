"""Families: what the decoder layers of a model family compute, as data that one fused layer reads.

`FAMILIES` is the table, and `described` (decoding/families/description.py) is its only reader.

Norms are computed in float32 and rounded once, like every operation of fused layers. Families differ in whether they
round before the weight is applied (Llama) or behind it (Gemma, OLMo 2, Cohere); in float32 that is the same.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from decoding.families.rotary import Pairs

_SPLIT = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


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
    gate: str = "hidden_act"  # its activation
    linears: tuple[tuple[str, ...], tuple[str, ...]] = _SPLIT  # queries, keys, values; gate and up
    windows: Literal["", "every layer", "by layer_types"] = ""  # layers that `sliding_window` is of
    rope: Literal["one", "by layer_types", "no_rope_layers", "sliding layers"] = "one"  # how layers turn
    pairs: Pairs = "halves"
    attention_softcap: str = ""
    residual_multiplier: str = ""
    embedding_scale: str = ""  # Gemma's embedding scales by itself
    logits_scale: Callable[[Any], float] | None = None
    logits_softcap: str = ""

    @property
    def norms(self) -> tuple[str | None, ...]:
        return self.attention_norm, self.after_attention, self.mlp_norm, self.after_mlp

    @property
    def runs_on_gpus(self) -> bool:
        """Whether its layers are Llama's, or may be: our GPU kernels and our FP8 products run no others."""
        return replace(self, windows="") == Family()

    def knows(self, name: str) -> bool:
        """Tell whether a parameter of this name is used."""
        norms, attention, mlp = ("|".join(filter(None, names)) for names in (self.norms, *self.linears))
        of_attention = rf"({attention}|o_proj)\.(weight|bias)|[qk]_norm\.weight"
        of_layer = rf"self_attn\.({of_attention})|mlp\.({mlp}|down_proj)\.(weight|bias)|({norms})\.weight"
        return name in _OTHER_PARAMETERS or bool(re.fullmatch(rf"model\.layers\.\d+\.({of_layer})", name))


_OTHER_PARAMETERS = {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}
_QWEN = Family(windows="by layer_types")
_GEMMA = Family(norm_offset=1.0)
_GEMMA_3 = replace(
    _GEMMA,
    after_attention="post_attention_layernorm",
    mlp_norm="pre_feedforward_layernorm",
    after_mlp="post_feedforward_layernorm",
    gate="hidden_activation",
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
    pairs="interleaved",
    logits_scale=lambda config: config.logit_scale,
)
_GLM = Family(linears=(_SPLIT[0], ("gate_up_proj",)), pairs="interleaved, tables in halves")
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
        embedding_scale="embedding_multiplier",
        logits_scale=lambda config: 1 / config.logits_scaling,
    ),
    "smollm3": Family(windows="by layer_types", rope="no_rope_layers"),
    "cohere": _COHERE,
    "cohere2": replace(_COHERE, windows="by layer_types", rope="sliding layers"),
}
