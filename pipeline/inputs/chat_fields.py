"""Fields of a row that say how its chat becomes a prompt, besides the messages, by their names in the API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.errors import RowError, wrong_type
from pipeline.inputs.records import parse_json
from pipeline.requests.chat import Conversation

CHAT_FIELDS = tuple(name for name in Conversation.table() if name != "messages")
_MAY_BE_JSON = ("tools", "tool_choice", "chat_template_kwargs")  # as text, in CSV and in Parquet


def chat_fields(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the fields that are given, of the right type; what they hold is checked where a prompt is made.

    `where` begins the name of a field in an error. Raises RowError (stage "template").
    """
    found: dict[str, Any] = {}
    for name in CHAT_FIELDS:
        value = values.get(name)
        if name in _MAY_BE_JSON and isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
            try:
                value = parse_json(value)
            except (ValueError, RecursionError) as error:
                raise RowError("template", f"{where}{name}: not JSON: {error}", type(error).__name__) from error
        if value is None or value == "":
            continue
        if name == "tools" and not isinstance(value, list):
            raise wrong_type("template", f"{where}{name}", "a list", value)
        found[name] = Conversation.table()[name].kind.read(f"{where}{name}", value)
    return found
