"""What a chat asks of tools: the functions that may be called, and which of them must be.

https://platform.openai.com/docs/api-reference/chat/create (`tools`, `tool_choice`, `parallel_tool_calls`).
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pipeline.errors import FieldError
from pipeline.requests.body import BOOLEAN, TEXT, check_number
from pipeline.requests.strict_json import check_json

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_MAX_TOOLS = 128
# Keywords of JSON Schema that speak of properties besides `properties`.
_MORE_NAMES = {"additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames", "minProperties"}
_MORE_NAMES |= {"$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "not", "if", "dependentSchemas", "dependencies"}

Mode = Literal["none", "auto", "required"]


@dataclass(frozen=True)
class Tool:
    """A function that may be called. `parameters` is a JSON Schema of an object, None for a function without any."""

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] | None = None
    strict: bool = False  # whether the arguments of every call are forced to fulfil the schema

    @property
    def schema(self) -> Mapping[str, Any]:
        """The schema that a forced call's arguments fulfil.

        Arguments that `parameters` does not name are left out, unless it says more of them than `properties`: a model
        may write any name where the schema is silent, and few functions take it.
        """
        if self.parameters is None:
            return {"type": "object", "properties": {}, "additionalProperties": False}
        schema = {"type": "object", **self.parameters}
        properties, required = schema.get("properties"), schema.get("required", [])
        if not isinstance(properties, dict) or not isinstance(required, list) or _MORE_NAMES & set(schema):
            return schema
        return (
            {**schema, "additionalProperties": False} if all(name in list(properties) for name in required) else schema
        )


@dataclass(frozen=True)
class ToolsAsked:
    """The tools of a chat, and how they may be used. With mode "required" at least one is called.

    `given` are the tools as they came, which is what a chat template gets.
    """

    tools: tuple[Tool, ...]
    mode: Mode = "auto"
    named: str | None = None  # the only function that may be called, with mode "required"
    is_parallel: bool = True  # whether there may be several calls
    given: Sequence[Mapping[str, Any]] = ()

    @property
    def callable(self) -> tuple[Tool, ...]:
        """The tools that an answer may call."""
        if self.mode == "none":
            return ()
        return tuple(tool for tool in self.tools if self.named in (None, tool.name))

    @property
    def num_characters(self) -> int:
        """The size of the tools, as JSON."""
        return sum(len(json.dumps(tool, ensure_ascii=False)) for tool in self.given)

    @property
    def is_forced(self) -> bool:
        """Whether the answer is nothing but calls."""
        return self.mode == "required"

    @property
    def needs_grammar(self) -> bool:
        """Whether a grammar holds the output: for forced calls, strict functions, and where one call is the limit."""
        if self.mode == "auto":
            return not self.is_parallel or any(tool.strict for tool in self.tools)
        return self.is_forced


def read_tools(tools: Any, choice: Any = None, is_parallel: Any = None) -> ToolsAsked | None:
    """Return what the fields `tools`, `tool_choice` and `parallel_tool_calls` ask for; None without the first.

    Fields that are None count as absent. Fields of a tool that are not known here go to the chat template like all
    others. Raises FieldError.
    """
    BOOLEAN.if_given("parallel_tool_calls", is_parallel)
    found = _tools(tools)
    if not found:
        if choice not in (None, "none", "auto"):
            raise FieldError("tool_choice", "it needs tools, and there are none")
        return None if tools is None else ToolsAsked(())
    mode, named = _choice(choice, found)
    return ToolsAsked(found, mode, named, is_parallel is not False and named is None, tools)


def _tools(value: Any) -> tuple[Tool, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise FieldError("tools", "expected a list of functions")
    check_number("tools", value, _MAX_TOOLS, "functions")
    check_json("tools", value)
    tools = [_tool(f"tools[{index}]", each) for index, each in enumerate(value)]
    for index, tool in enumerate(tools):
        if any(tool.name == other.name for other in tools[:index]):
            raise FieldError(f"tools[{index}].function.name", "another function of the list has this name")
    return tuple(tools)


def _tool(where: str, value: Any) -> Tool:
    if not isinstance(value, dict):
        raise FieldError(where, 'expected an object with type "function" and a function')
    if value.get("type") is None and "function" not in value and "name" in value:
        return _function(where, value)  # the function itself, as some data sets have it
    if value.get("type") != "function":
        reason = 'expected "function"; other tools are not supported'
        raise FieldError(f"{where}.type", reason, is_unsupported=isinstance(value.get("type"), str))
    if value.get("strict") is not None:  # it would ask for nothing there
        raise FieldError(f"{where}.strict", "it is a field of the function; put it there")
    return _function(f"{where}.function", value.get("function"))


def _function(where: str, value: Any) -> Tool:
    if not isinstance(value, dict):
        raise FieldError(where, "expected an object with a name")
    name = value.get("name")
    check_name(f"{where}.name", name)
    description = TEXT.if_given(f"{where}.description", value.get("description"))
    strict = BOOLEAN.if_given(f"{where}.strict", value.get("strict"))
    parameters = value.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise FieldError(f"{where}.parameters", "expected a JSON Schema, an object")
    if parameters is not None and parameters.get("type", "object") != "object":
        raise FieldError(f"{where}.parameters.type", 'expected "object": the arguments of a call are an object')
    return Tool(str(name), description, parameters, bool(strict))


def check_name(where: str, name: Any) -> None:
    """Raise FieldError for what is no name of a function."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        got = f"got {len(name)} characters" if isinstance(name, str) and len(name) > 64 else f"got {ascii(name)[:80]}"
        raise FieldError(where, f"expected a name of 1 to 64 letters, digits, - and _, {got}")


def _choice(value: Any, tools: Sequence[Tool]) -> tuple[Mode, str | None]:
    match value:
        case None | "auto":
            return "auto", None
        case "none":
            return "none", None
        case "required":
            return "required", None
        case {"type": "function"}:
            _refuse_unknown("tool_choice", value, {"type", "function"})
            function = value.get("function")
            if not isinstance(function, dict):
                raise FieldError("tool_choice.function", "expected an object with a name")
            _refuse_unknown("tool_choice.function", function, {"name"})
            if function.get("name") not in [tool.name for tool in tools]:
                names = ", ".join(tool.name for tool in tools)
                names = names if len(names) <= 200 else f"{names[:200]}..."
                raise FieldError("tool_choice.function.name", f"no function of tools has this name; they are {names}")
            return "required", str(function["name"])
        case {"type": str()}:
            raise FieldError("tool_choice.type", "this server supports function alone", is_unsupported=True)
    raise FieldError("tool_choice", 'expected none, auto, required, or {"type": "function", "function": {"name": ...}}')


def _refuse_unknown(where: str, value: Mapping[str, Any], known: set[str]) -> None:
    for name, each in value.items():
        if name not in known and each is not None:
            raise FieldError(
                f"{where}.{ascii(name)[1:-1]:.64}", "it is not supported; leave it out", is_unsupported=True
            )
