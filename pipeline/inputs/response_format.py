"""The form of an output as requests ask for it: OpenAI's `response_format`, and vLLM's fields for the same.

https://platform.openai.com/docs/api-reference/chat/create (`response_format`), and `structured_outputs` and the older
`guided_*` in https://docs.vllm.ai/en/latest/features/structured_outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FIELDS = ("response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar")
_VLLM = {  # vLLM's names, and ours
    "json": "json_schema",
    "json_object": "json_object",
    "regex": "regex",
    "choice": "choice",
    "grammar": "grammar",
    "disable_any_whitespace": "disable_any_whitespace",
}
_KINDS: Mapping[type, str] = {  # as JSON calls them
    **dict.fromkeys((int, float), "a number"),
    **{type(None): "null", bool: "true or false", str: "a string", list: "a list", dict: "other names than strings"},
}
_OF_SCHEMA = {"name", "description", "schema", "strict"}  # a schema is always kept to, as with strict


class FormatError(ValueError):
    """A field that cannot be honoured; `param` is its path in the body."""

    def __init__(self, param: str, message: str) -> None:
        self.param, self.message = param, message
        super().__init__(f"{param}: {message}")


def structured_of(body: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what `sampling.structured` is for the body of a request; None if it asks for no form.

    Only the fields themselves are checked; what they hold is checked where sampling parameters are made. Raises
    FormatError.
    """
    found = {name: _translated(name, body[name]) for name in FIELDS if body.get(name) is not None}
    asked = {name: value for name, value in found.items() if value is not None}
    if len(asked) > 1:
        first, second, *_ = asked
        raise FormatError(second, f"the body has {first}, too; give one of them")
    return next(iter(asked.values()), None)


def form_field(body: Mapping[str, Any]) -> str | None:
    """Return the path of the field that says what the form is, as in structured_outputs.regex; None without a form."""
    name = next((name for name in FIELDS if body.get(name) is not None), None)
    value = None if name is None else body[name]
    if name == "response_format" and isinstance(value, Mapping):
        return "response_format.json_schema.schema" if value.get("type") == "json_schema" else name
    if name == "structured_outputs" and isinstance(value, Mapping):
        inner = next((each for each in _VLLM if value.get(each) not in (None, False)), None)
        return name if inner is None else f"{name}.{inner}"
    return name


def _translated(name: str, value: Any) -> dict[str, Any] | None:
    if name == "response_format":
        return _of_response_format(value)
    if name == "structured_outputs":
        return _of_vllm(value)
    return {_VLLM[name.removeprefix("guided_")]: value}


def _of_response_format(value: Any) -> dict[str, Any] | None:
    kind = _object("response_format", value).get("type")
    known = {"type", "json_schema"} if kind == "json_schema" else {"type"}
    if kind not in ("text", "json_object", "json_schema"):
        raise FormatError("response_format.type", f"expected text, json_object or json_schema, got {str(kind)[:80]!r}")
    if unknown := sorted(set(value) - known):
        raise FormatError(f"response_format.{unknown[0]}", f"there is no such field with type {kind!r}")
    if kind == "text":
        return None
    if kind == "json_object":
        return {"json_object": True}
    inner = _object("response_format.json_schema", value.get("json_schema"))
    if unknown := sorted(set(inner) - _OF_SCHEMA):
        raise FormatError(f"response_format.json_schema.{unknown[0]}", "there is no such field")
    return {"json_schema": _object("response_format.json_schema.schema", inner.get("schema"))}


def _of_vllm(value: Any) -> dict[str, Any] | None:
    given = {name: each for name, each in _object("structured_outputs", value).items() if each not in (None, False)}
    if unknown := sorted(set(given) - set(_VLLM)):
        raise FormatError(f"structured_outputs.{unknown[0]}", f"it is not supported; supported are {', '.join(_VLLM)}")
    return {_VLLM[name]: each for name, each in given.items()} or None


def _object(param: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise FormatError(param, f"expected an object, got {_KINDS.get(type(value), 'something else')}")
    return value
