"""What an object in a config.json says, each value checked for its type; and the layers it describes, normalized."""

from typing import Any, NoReturn

from transformers import CONFIG_MAPPING

from decoding.checkpoint.supported import LOAD_FAILURES, in_one_line

_IN_WORDS = {bool: "true or false", int: "a whole number", str: "a text", dict: "an object"}


class Said:
    """The fields of a JSON object. A value of another type is a ValueError that names the field.

    A field that is null counts as absent, as it does in transformers.
    """

    def __init__(self, fields: dict[str, Any], where: str = "config.json") -> None:
        """Wrap an object; `where` names it in messages."""
        self.fields, self.where = fields, where

    def has(self, name: str) -> bool:
        """Tell whether a field has a value."""
        return self.fields.get(name) is not None

    def value(self, name: str, kind: type, default: Any = None) -> Any:
        """Return a value of this type, or the default if the field is absent."""
        value = self.fields.get(name)
        if value is None:
            return default
        return value if _is_a(value, kind) else self._refuse(name, _IN_WORDS[kind])

    def values(self, name: str, kind: type) -> Any:
        """Return a tuple of values of this type, or None if the field is absent."""
        values = self.fields.get(name)
        if values is None:
            return None
        if not isinstance(values, list) or not all(_is_a(value, kind) for value in values):
            self._refuse(name, "a list of texts" if kind is str else "a list of whole numbers")
        return tuple(values)

    def inside(self, name: str) -> "Said":
        """Return an object within this one, empty if the field is absent."""
        return Said(self.value(name, dict, {}), f"{name} of {self.where}")

    def _refuse(self, name: str, in_words: str) -> NoReturn:
        raise ValueError(
            f"has {name} {self.fields[name]!r} in {self.where}, expected {in_words}; copy or download it again"
        )


def _is_a(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


_MODEL_TYPES = ("llama", "qwen3")
_SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
_NOT_OF_LAYERS = ("transformers_version", "architectures", "auto_map", "_name_or_path")


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
