"""Said: the fields of an object in a head's config.json. They are checked for their types, and for unknown names.

A flag that a reader does not know is elsewhere lost without an error: the text stays right, and fewer drafts are
accepted. So here each field that no reader asks for is refused by name, unless it says what is computed anyway.
"""

from collections.abc import Collection
from typing import Any, NoReturn

# What is computed anyway, of fields that vLLM, SGLang or NVIDIA's Model Optimizer have and not every reader here.
_COMPUTED: dict[str, tuple[Any, ...]] = {
    "attention_mode": ("gqa",),
    "hidden_act": ("silu", "swish"),
    "input_embedding_scale": (1,),
    "is_causal": (True,),
    "is_neox_style": (True,),
    "logit_scale": (1,),
    "modal_type": ("LLM",),
    "next_layer_regular": (True,),
    "output_multiplier": (1,),
    "parallel_draft_step": (0, 1),
    "partial_rotary_factor": (1,),
    "position_embedding_type": ("rope",),
    "use_aux_hidden_state": (True,),
    "use_input_layernorm_in_first_layer": (True,),
    "use_last_layernorm": (True,),
    "use_mtp_layernorm": (False,),
}
_OFF: tuple[Any, ...] = (False, "", [], {})
_CHANGES_NOTHING = (
    "_name_or_path", "architectures", "auto_map", "compression_config", "confidence_head_alpha", "dtype",
    "embed_requires_grad", "has_lm_head", "parallel_draft_heads_num_layers", "quantization_config", "return_dict",
    "speculators_config", "speculators_model_type", "speculators_version", "target_model_type", "tie_word_embeddings",
    "torch_dtype", "transformers_version", "use_cache",
)  # fmt: skip
_TYPES = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", dict: "an object"}


class Said:
    """The fields of a JSON object. A value of another type is a ValueError that names the field.

    A field that is null counts as absent, as it does in transformers.
    """

    def __init__(self, fields: dict[str, Any], where: str = "config.json") -> None:
        """Wrap an object; `where` names it in messages."""
        self.fields, self.where = fields, where
        self._asked: set[str] = set()

    def has(self, name: str) -> bool:
        """Tell whether a field has a value."""
        return self.fields.get(name) is not None

    def value(self, name: str, kind: type, default: Any = None) -> Any:
        """Return a value of this type, or the default if the field is absent."""
        self._asked.add(name)
        value = self.fields.get(name)
        if value is None:
            return default
        return value if _is_a(value, kind) else self._refuse(name, _TYPES[kind])

    def values(self, name: str, kind: type) -> Any:
        """Return a tuple of values of this type, or None if the field is absent."""
        self._asked.add(name)
        values = self.fields.get(name)
        if values is None:
            return None
        if not isinstance(values, list) or not all(_is_a(value, kind) for value in values):
            self._refuse(name, "a list of texts" if kind is str else "a list of whole numbers")
        return tuple(values)

    def inside(self, name: str) -> "Said":
        """Return an object within this one, empty if the field is absent."""
        return Said(self.value(name, dict, {}), f"{name} of {self.where}")

    def refuse_unasked(self, known: Collection[str] = ()) -> None:
        """Raise a ValueError for a field that no reader asked for, that is not `known`, and on which a head may depend.

        A field that is null, false, zero or empty switches nothing on, unless the table above says otherwise.
        """
        for name, value in self.fields.items():
            if name in self._asked or value is None or value in _COMPUTED.get(name, ()):
                continue
            if name in _COMPUTED:
                raise ValueError(
                    f"has {name} {value!r} in {self.where}, and Dray computes {' or '.join(map(repr, _COMPUTED[name]))}"
                    " alone; use another version of the head"
                )
            if not (name in known or name in _CHANGES_NOTHING or value in _OFF):
                raise ValueError(
                    f"has {name} {value!r} in {self.where}, a field that Dray does not know, and what the head "
                    "computes may depend on it; use another version of the head, or remove it if nothing depends on it"
                )

    def _refuse(self, name: str, in_words: str) -> NoReturn:
        raise ValueError(
            f"has {name} {self.fields[name]!r} in {self.where}, expected {in_words}; copy or download it again"
        )


def _is_a(value: Any, kind: type) -> bool:
    kinds = (int, float) if kind is float else kind
    return isinstance(value, kinds) and (kind is bool or not isinstance(value, bool))
