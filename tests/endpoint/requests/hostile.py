"""Requests that are meant to do harm: what a case is, and shorthands for the fields of most."""

from dataclasses import dataclass
from typing import Any

from tests.endpoint.requests.bad_requests import CHAT, HI, MESSAGE

LETTERS = {"type": "string", "pattern": "^[a-z]+$"}
OBJECT = {"type": "object", "properties": {"a": LETTERS}, "required": ["a"], "additionalProperties": False}
MANY = {"type": "object", "properties": {f"p{number}": {"type": "integer"} for number in range(3000)}}
LARGE = "^(a{1000}){1000}$"  # whose lexer is too large
CIRCLE = {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}


@dataclass(frozen=True)
class Hostile:
    """Fields of a request to `path`; the field that its error names (None: it is answered), and words of the message.

    To refuse one that `is_slow` takes so long that another stream must go on meanwhile.
    """

    name: str
    fields: dict[str, Any]
    param: str | None = None
    said: str = ""
    status: int = 400
    path: str = CHAT
    is_slow: bool = False

    @property
    def body(self) -> dict[str, Any]:
        """The whole body."""
        return {**(HI if self.path == CHAT else {}), "max_tokens": 40, **self.fields}


def of_schema(schema: Any) -> dict[str, Any]:
    """Ask for JSON of this schema."""
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}}


def of_form(**structured: Any) -> dict[str, Any]:
    """Ask for a form by vLLM's field."""
    return {"structured_outputs": structured}


def tool(name: Any = "f", parameters: Any = None, **more: Any) -> dict[str, Any]:
    """Return a function as a tool."""
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


def of_tools(*tools: Any, choice: Any = "required") -> dict[str, Any]:
    """Ask for a call of these tools."""
    return {"tools": list(tools), "tool_choice": choice}


def needing(**properties: Any) -> dict[str, Any]:
    """Return the schema of an object with these properties and no others."""
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def of_history(*messages: dict[str, Any]) -> dict[str, Any]:
    """Return a dialogue in which tools were called."""
    return {"messages": [MESSAGE, *messages, MESSAGE], "tools": [tool()], "tool_choice": "none"}


def called(arguments: Any, **more: Any) -> dict[str, Any]:
    """Return an answer that called a function."""
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}, "id": "c1", **more}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def named(name: Any) -> dict[str, Any]:
    """Choose the function with this name."""
    return {"type": "function", "function": {"name": name}}


def deep(levels: int) -> dict[str, Any]:
    """Return the schema of arrays in arrays."""
    schema: dict[str, Any] = LETTERS
    for _ in range(levels):
        schema = {"type": "array", "items": schema, "minItems": 1}
    return schema
