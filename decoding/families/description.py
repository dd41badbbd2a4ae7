"""The description of a network: what its layers compute, by its family and its configuration.

`described` looks at a network's configuration and at the names of its parameters, and returns None for whatever the
table of families does not know. Such a network runs transformers' own code.
"""

from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel

from decoding.checkpoint.supported import rope_parameters
from decoding.families.family import FAMILIES, Family
from decoding.fp8.linear import Fp8Linear, may_join

_GATES = {"silu": False, "gelu_pytorch_tanh": True}  # activations, and whether the gate is gelu
_COLUMNS = 32  # in which halves of a product must be whole: a multiple of `kernels.linear_columns` everywhere
_CHANGING_ROPES = {"dynamic", "longrope"}  # whose tables depend on the length of a text


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
        return self.family.runs_on_gpus and not self.gate_is_gelu and not any(kind.window for kind in self.kinds)


def described(model: PreTrainedModel) -> Description | None:
    """Return what a network computes; None if a parameter or a field is not known, so that it may compute more."""
    config = model.config
    family = FAMILIES.get(config.model_type)
    if (
        family is None
        or (gate := getattr(config, family.gate)) not in _GATES
        or getattr(config, "use_bidirectional_attention", False)
    ):
        return None
    windows = _windows(family, config)
    names = [name.replace(".own.", ".") for name, _ in model.named_parameters()]  # `Share.own`: a part of a module
    if windows is None or not all(map(family.knows, names)):
        return None
    if len({parameter.dtype for parameter in model.parameters()}) > 1 or getattr(config, "use_qk_norm", False):
        return None
    if not all(may_join(module, names) for module in model.modules() for names in family.linears):
        return None

    def number(name: str, default: float) -> float:
        found = getattr(config, name, None) if name else None
        return default if found is None else float(found)

    turned = _ropes(family, config)
    ropes = tuple(dict.fromkeys(turned))
    found = Description(
        family,
        _GATES[gate],
        # A list of a configuration may name more layers than there are.
        tuple(LayerKind(window, ropes.index(rope)) for window, rope in zip(windows, turned, strict=False)),
        ropes,
        number(family.attention_softcap, 0.0),
        number(family.residual_multiplier, 1.0),
        number(family.embedding_scale, 1.0),
        1.0 if family.logits_scale is None else float(family.logits_scale(config)),
        number(family.logits_softcap, 0.0),
    )
    if found.is_as_llama:
        return found
    is_divided = len(family.linears[1]) > 1 or config.intermediate_size % _COLUMNS == 0
    changes = any(each.get("rope_type") in _CHANGING_ROPES for each in rope_parameters(config))
    is_fp8 = any(isinstance(module, Fp8Linear) for module in model.modules())
    return found if is_divided and not changes and not is_fp8 else None


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
