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
    **{name: name for name in ("json_object", "regex", "choice", "grammar", "disable_any_whitespace")},
}
_FLAGS = ("json_object", "disable_any_whitespace")  # false asks for nothing
_KINDS: Mapping[type, str] = {  # as JSON calls them
    **dict.fromkeys((int, float), "a number"),
    **{type(None): "null", bool: "true or false", str: "a string", list: "a list"},
}
_OF_SCHEMA = {"name", "description", "schema", "strict"}  # a schema is always kept to, as with strict
_SCHEMA = "response_format.json_schema"
Form = tuple[str, dict[str, Any]]


def form_of(fields: Mapping[str, Any]) -> Form | None:
    """Return the form that the fields of a body ask for; None without one. Fields that are None are left out.

    It is the path of the field that says what the form is ("structured_outputs.regex"), and what `sampling.structured`
    is for it, which is checked where sampling parameters are made. Raises FieldError.
    """
    found = {name: _form(name, value) for name, value in fields.items()}
    asked = {name: form for name, form in found.items() if form is not None}
    if len(asked) > 1:
        first, second, *_ = asked
        raise FieldError(second, f"the body has {first}, too; give one of them")
    return next(iter(asked.values()), None)


def _form(name: str, value: Any) -> Form | None:
    if name == "response_format":
        return _of_response_format(value)
    if name == "structured_outputs":
        return _of_vllm(value)
    return name, {_VLLM[name.removeprefix("guided_")]: value}


def _of_response_format(value: Mapping[str, Any]) -> Form | None:
    kind = value.get("type")
    if kind not in ("text", "json_object", "json_schema"):
        raise FieldError("response_format.type", f"expected text, json_object or json_schema, got {str(kind)[:80]!r}")
    if unknown := sorted(value.keys() - ({"type", "json_schema"} if kind == "json_schema" else {"type"})):
        raise FieldError(f"response_format.{shown_name(unknown[0])}", f"there is no such field with type {kind!r}")
    if kind == "text":
        return None
    if kind == "json_object":
        return "response_format", {"json_object": True}
    inner = _object(_SCHEMA, value.get("json_schema"))
    if unknown := sorted(inner.keys() - _OF_SCHEMA):
        raise FieldError(f"{_SCHEMA}.{shown_name(unknown[0])}", "there is no such field")
    return f"{_SCHEMA}.schema", {"json_schema": _object(f"{_SCHEMA}.schema", inner.get("schema"))}


def _of_vllm(value: Mapping[str, Any]) -> Form | None:
    given = {k: each for k, each in value.items() if each is not None and not (each is False and k in _FLAGS)}
    if unknown := sorted(given.keys() - _VLLM.keys()):
        where = f"structured_outputs.{shown_name(unknown[0])}"
        raise FieldError(where, f"it is not supported; supported are {', '.join(_VLLM)}")
    form = {ours: given[name] for name, ours in _VLLM.items() if name in given}
    first = next((name for name in _VLLM if name in given), None)
    return None if first is None else (f"structured_outputs.{first}", form)


def _object(where: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise FieldError(where, f"expected an object, got {_KINDS[type(value)]}")
    return value
