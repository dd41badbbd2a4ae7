"""The form of an output as requests ask for it: OpenAI's `response_format`, and vLLM's fields for the same.

https://platform.openai.com/docs/api-reference/chat/create (`response_format`), and `structured_outputs` and the older
`guided_*` in https://docs.vllm.ai/en/latest/features/structured_outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.errors import FieldError, shown_name

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
    **{type(None): "null", bool: "true or false", str: "a string", list: "a list"},
}
_OF_SCHEMA = {"name", "description", "schema", "strict"}  # a schema is always kept to, as with strict


def structured_of(fields: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what `sampling.structured` is for the fields of a body that are not None; None if it asks for no form.

    What the fields hold is checked where sampling parameters are made. Raises FieldError.
    """
    found = {name: _translated(name, value) for name, value in fields.items()}
    asked = {name: value for name, value in found.items() if value is not None}
    if len(asked) > 1:
        first, second, *_ = asked
        raise FieldError(second, f"the body has {first}, too; give one of them")
    return next(iter(asked.values()), None)


def form_field(fields: Mapping[str, Any]) -> str | None:
    """Return the path of the field that says what the form is, as in structured_outputs.regex; None without a form."""
    name = next(iter(fields), None)
    value = None if name is None else fields[name]
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


def _of_response_format(value: Mapping[str, Any]) -> dict[str, Any] | None:
    kind = value.get("type")
    known = {"type", "json_schema"} if kind == "json_schema" else {"type"}
    if kind not in ("text", "json_object", "json_schema"):
        raise FieldError("response_format.type", f"expected text, json_object or json_schema, got {str(kind)[:80]!r}")
    if unknown := sorted(set(value) - known):
        raise FieldError(f"response_format.{shown_name(unknown[0])}", f"there is no such field with type {kind!r}")
    if kind == "text":
        return None
    if kind == "json_object":
        return {"json_object": True}
    inner = _object("response_format.json_schema", value.get("json_schema"))
    if unknown := sorted(set(inner) - _OF_SCHEMA):
        raise FieldError(f"response_format.json_schema.{shown_name(unknown[0])}", "there is no such field")
    return {"json_schema": _object("response_format.json_schema.schema", inner.get("schema"))}


def _of_vllm(value: Mapping[str, Any]) -> dict[str, Any] | None:
    given = {name: each for name, each in value.items() if each not in (None, False)}
    if unknown := sorted(set(given) - set(_VLLM)):
        where = f"structured_outputs.{shown_name(unknown[0])}"
        raise FieldError(where, f"it is not supported; supported are {', '.join(_VLLM)}")
    return {_VLLM[name]: each for name, each in given.items()} or None


def _object(where: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise FieldError(where, f"expected an object, got {_KINDS[type(value)]}")
    return value
