"""The configuration of a head's own layers, normalized: one spelling, every default of transformers filled in."""

from typing import Any

from transformers import CONFIG_MAPPING

from decoding.checkpoint.supported import LOAD_FAILURES, in_one_line

_MODEL_TYPES = ("llama", "qwen3")
_SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
_NOT_OF_LAYERS = ("transformers_version", "architectures", "auto_map", "_name_or_path")
_OPTIONAL_BIASES = {"llama": ("attention_bias", "mlp_bias"), "qwen3": ("attention_bias",)}


def normalized(said: dict[str, Any], dtype: str | None = None) -> dict[str, Any]:
    """Return the configuration of layers as transformers writes it today.

    Older spellings are read: `rope_theta` and `rope_scaling` for `rope_parameters`, `torch_dtype` for `dtype`. Fields
    that transformers does not know are kept. `dtype` is taken where the layers say none. Raises ValueError, with a
    message that begins with a verb, for layers that no reader of heads has (llama and qwen3 alone), and for sizes that
    are missing or that transformers refuses.
    """
    model_type = said.get("model_type")
    if model_type not in _MODEL_TYPES:
        raise ValueError(
            f"has layers of type {model_type!r}, expected {' or '.join(_MODEL_TYPES)}; use a head with such layers"
        )
    for name in _SIZES:
        value = said.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(
                f"has {name} {value!r} for its layers, expected a number from 1 on; correct its config.json"
            )
    fields = {name: value for name, value in said.items() if name not in _NOT_OF_LAYERS}
    if dtype is not None and not (fields.get("dtype") or fields.get("torch_dtype")):
        fields["dtype"] = dtype
    try:
        layers: dict[str, Any] = CONFIG_MAPPING[model_type](**fields).to_diff_dict()
    except LOAD_FAILURES as error:
        raise ValueError(
            f"has layers that transformers refuses: {in_one_line(error)}; correct its config.json"
        ) from error
    return {name: value for name, value in layers.items() if name not in _NOT_OF_LAYERS}


def has_bias(layer_config: dict[str, Any], which: str) -> bool:
    """Tell whether the attention ("attention_bias") or the MLP ("mlp_bias") of the layers has biases."""
    return which in _OPTIONAL_BIASES[layer_config["model_type"]] and bool(layer_config.get(which))
