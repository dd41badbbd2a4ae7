"""Rows whose forms, tools and calls in history are wrong, each with its stage and words of its error row."""

import json
from typing import Any

from tests.endpoint.requests.hostile import CIRCLE, LARGE, MANY, OBJECT, called, deep, named, needing, tool

HELLO = [{"role": "user", "content": "hello"}]
# The columns of a row, and what its error row says. None: the row is written.
Case = tuple[dict[str, Any], tuple[str, str] | None]
_PARAMS = "params"


def _form(said: str, stage: str = _PARAMS, **structured: Any) -> Case:
    return {"prompt": "hello", "sampling": {"structured": structured}}, (stage, said)


def _schema(schema: Any, said: str) -> Case:
    return _form(f"sampling.structured.json_schema {said}", json_schema=json.dumps(schema))


def _tools(said: str, *tools: Any, choice: Any = "required", stage: str = "template", **more: Any) -> Case:
    asked = {"tools": json.dumps(tools), "tool_choice": choice if isinstance(choice, str) else json.dumps(choice)}
    return {"messages": HELLO, **asked, **more}, (stage, said)


def _history(said: str, *messages: Any) -> Case:
    return {"messages": [*HELLO, *messages, *HELLO]}, ("template", said)


LARGE_FORM = "cannot be compiled: lexer error: the repetitions write out 1000000 bytes without a choice"
NO_TEXT = "sampling.structured: the grammar cannot be followed: no token can begin what it asks for"
LATE = {**needing(k={"const": "abcdefgh"}, a={"$ref": "#/$defs/a"}), "$defs": CIRCLE["$defs"]}
LARGE_TEXT = {"type": "string", "pattern": LARGE}
FORMS: dict[str, Case] = {
    "a million letters": _form(f"sampling.structured.regex {LARGE_FORM}", regex="(a{1000}){1000}"),
    "brackets": _form("sampling.structured.regex cannot be compiled: at 1(8): invalid regex", regex="a(b"),
    "letters in a pattern": _schema(LARGE_TEXT, LARGE_FORM),
    "letters behind a property": _schema(
        needing(k={"const": "ab"}, a=LARGE_TEXT), "cannot be compiled at /properties/a: "
    ),
    "3,000 properties": _schema(MANY, "cannot be compiled: grammar size (number of symbols) too big"),
    "400 levels": _schema(deep(400), "cannot be compiled: recursion limit exceeded"),
    "5,000 levels": _form("is not JSON that can be read: too many levels", json_schema='{"items":' * 5000),
    "no JSON": _form("sampling.structured.json_schema is not JSON: ", json_schema="{'a'"),
    "a circle": ({"prompt": "hello", "sampling": {"structured": {"json_schema": CIRCLE}}}, ("generate", NO_TEXT)),
    "a circle behind a property": (
        {
            "prompt": "hello",
            "sampling": {"structured": {"json_schema": LATE, "disable_any_whitespace": True}, "max_tokens": 60},
        },
        ("generate", "NoExtensionBias (no text goes on as it asks"),
    ),
    "a type that is none": _schema({"properties": {"a": {"type": "objekt"}}}, "cannot be compiled at /properties/a: "),
    "a reference to a page": _schema({"$ref": "https://a.test/b"}, "cannot be compiled: Resource 'https://a.test/b'"),
    "a schema that is a list": _schema([OBJECT], "must be an object, got ["),
    "no choice": _form("sampling.structured.choice must be a list of non-empty texts, got []", choice=[]),
    "an empty choice": _form("sampling.structured.choice must be a list of non-empty texts, got ['']", choice=[""]),
    "a grammar in a circle": _form(NO_TEXT, "generate", grammar="start: start"),
    "a grammar without a start": _form("sampling.structured.grammar cannot be compiled: ", grammar='a: "b"'),
    "two forms": _form("sampling.structured must have exactly one of", regex="a", choice=["a"]),
    "an unknown form": _form("sampling.structured has no ['regx']; it has json_schema", regx="a"),
    "a form that is a text": (
        {"prompt": "hello", "sampling": {"structured": "json"}},
        (_PARAMS, "sampling.structured must be an object with one of json_schema"),
    ),
    "a form without its end": (
        {"prompt": "hello", "sampling": {"structured": {"regex": "a"}, "ignore_eos": True}},
        (_PARAMS, "sampling.ignore_eos is True, which would forbid the end token"),
    ),
    "a form of bad words": (
        {"prompt": "hello", "sampling": {"structured": {"choice": ["a"]}, "bad_words": ["a"]}},
        ("generate", "sampling.bad_words and sampling.structured leave no token after 0 output tokens"),
    ),
}
NAME = "tools[0].function.name: expected a name of 1 to 64 letters, digits, - and _, got "
CALL = "messages[1].tool_calls[0]"
TOOLS: dict[str, Case] = {
    "a long name": _tools(f"{NAME}65 characters", tool("n" * 65)),
    "a name with lines": _tools(f"{NAME}'a\\nb'", tool("a\nb")),
    "a name that is null": _tools(f"{NAME}None", tool(None)),
    "parameters of a list": _tools("tools[0].function.parameters: expected a JSON Schema", tool("f", [1])),
    "parameters of an array": _tools(
        'tools[0].function.parameters.type: expected "object"', tool("f", {"type": "array"})
    ),
    "bad parameters": _tools(
        "tools[0].function.parameters: it cannot be compiled at /properties/a: Invalid type: objekt",
        tool("f", needing(a={"type": "objekt"})),
    ),
    "large parameters": _tools(
        "tools[0].function.parameters: it cannot be compiled at /properties/a: lexer error",
        tool("f", needing(a=LARGE_TEXT)),
    ),
    "parameters of 3,000 properties": _tools("(use fewer properties or alternatives)", tool("f", MANY)),
    "129 tools": _tools("tools: expected at most 128 functions, got 129", *[tool(f"f{i}") for i in range(129)]),
    "the same name twice": _tools("tools[1].function.name: another function of the list has this name", tool(), tool()),
    "no tools": _tools("tool_choice: it needs tools, and there are none"),
    "a tool that is a text": _tools("tools[0]: expected an object with type", "f"),
    "a tool that searches": _tools("tools[0].type: expected", {"type": "web_search"}),
    "an unknown choice": _tools("tool_choice: expected none, auto, required, or", tool(), choice="any"),
    "a choice of no tool": _tools(
        "tool_choice.function.name: no function of tools has this name", tool(), choice=named("g")
    ),
    "no place": _tools("tools: the chat template of this model has no place for tools", tool(), choice="auto"),
    "calls at once": _tools("parallel_tool_calls: expected true or false", tool(), parallel_tool_calls="no"),
    "tools that are no JSON": ({"messages": HELLO, "tools": "[1"}, ("template", "tools: not JSON")),
    "tools that are a number": ({"messages": HELLO, "tools": 3}, ("template", "tools: expected a list, got int")),
    "arguments that are no JSON": _history(f"{CALL}.function.arguments: expected JSON text", called('{"a"')),
    "arguments of a list": _history(f"{CALL}.function.arguments: expected an object, or JSON", called("[1]")),
    "a call without a name": _history(
        f"{CALL}.function.name: expected a name", {"role": "assistant", "tool_calls": [{"function": {}}]}
    ),
    "an answer to a number": _history(
        "messages[1].tool_call_id: expected the id of a call", {"role": "tool", "content": "1", "tool_call_id": 7}
    ),
}
HOSTILE_ROWS = {**FORMS, **TOOLS}
GOOD_ROWS: dict[str, dict[str, Any]] = {
    "plain": {"prompt": "hello"},
    "plain again": {"prompt": "hello"},
    "a good form": {"prompt": "hello", "sampling": {"structured": {"regex": "[ab]{2,4}"}}},
    "a good call": {"messages": HELLO, "tools": json.dumps([tool()]), "tool_choice": "required"},
}
