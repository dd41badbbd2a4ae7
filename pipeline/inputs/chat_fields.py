"""Fields of a row that say how its chat becomes a prompt, besides the messages, by their names in the API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.errors import RowError, wrong_type
from pipeline.inputs.records import parse_json

# The type of each field, and whether JSON text may stand for it (in CSV, and in Parquet).
_FIELDS: Mapping[str, tuple[tuple[type, ...], bool]] = {
    "tools": ((list,), True),
    "tool_choice": ((str, dict), True),
    "parallel_tool_calls": ((bool,), False),
    "chat_template_kwargs": ((dict,), True),
    "reasoning_effort": ((str,), False),
    "continue_final_message": ((bool,), False),
    "add_generation_prompt": ((bool,), False),
}
CHAT_FIELDS = tuple(_FIELDS)


def chat_fields(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the fields that are given, of the right type; what they hold is checked where a prompt is made.

    `where` begins the name of a field in an error. Raises RowError (stage "template").
    """
    found: dict[str, Any] = {}
    for name, (types, may_be_json) in _FIELDS.items():
        value = values.get(name)
        if may_be_json and isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
            try:
                value = parse_json(value)
            except (ValueError, RecursionError) as error:
                raise RowError("template", f"{where}{name}: not JSON: {error}", type(error).__name__) from error
        if value is None or value == "":
            continue
        if not isinstance(value, types):
            expected = {list: "a list", dict: "an object", str: "a string", bool: "true or false"}[types[-1]]
            raise wrong_type("template", f"{where}{name}", expected, value)
        found[name] = value
    return found
