"""Requests that are meant to do harm: forms, tools, choices, calls in history and names, too large or contradictory."""

from dataclasses import dataclass
from typing import Any

from tests.endpoint.requests.bad_requests import CHAT, COMPLETE, HI, MESSAGE

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


def schemed(schema: Any) -> dict[str, Any]:
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


SCHEMA, REGEX = "response_format.json_schema.schema", "structured_outputs.regex"
GRAMMAR, CHOICE = "structured_outputs.grammar", "structured_outputs.choice"
LEXER = "it cannot be compiled: lexer error: "
TOO_LARGE = f"{LEXER}the repetitions write out 1000000 bytes without a choice, more than 10000; use smaller counts"
NO_TEXT = "the grammar cannot be followed: no token can begin what it asks for"
NO_FURTHER = "the grammar cannot be followed further: NoExtensionBias (no text goes on as it asks: "
MANY_RULES = "start: " + " | ".join(f'"a{number}"' for number in range(30_000))
TREE = {"$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}, "minItems": 1}}, "$ref": "#/$defs/t"}
LATE = {**needing(k={"const": "abcdefgh"}, a={"$ref": "#/$defs/a"}), "$defs": CIRCLE["$defs"]}
TEXT = {"type": "string"}

SCHEMAS = [
    Hostile("a million letters in a pattern", schemed({**TEXT, "pattern": LARGE}), SCHEMA, TOO_LARGE),
    Hostile(
        "a million letters behind another property",
        schemed(needing(k={"const": "abcdefgh"}, a={**TEXT, "pattern": LARGE})),
        SCHEMA,
        "it cannot be compiled at /properties/a: lexer error: the repetitions write out 1000000 bytes",
    ),
    Hostile(
        "many patterns of some letters",
        schemed(
            needing(**{f"p{number}": {**TEXT, "pattern": f"^[a-z]{{4}}a{{{900 + number}}}$"} for number in range(12)})
        ),
        SCHEMA,
        "it cannot be compiled at /properties/p11: lexer error: the repetitions of this pattern and of those before it",
    ),
    Hostile(
        "a name of a million letters",
        schemed({"patternProperties": {LARGE: {}}}),
        SCHEMA,
        "/patternProperties: lexer",
    ),
    Hostile("3,000 optional properties", schemed(MANY), SCHEMA, "(use fewer properties or alternatives)", is_slow=True),
    Hostile(
        "20,000 constants",
        schemed({"enum": [f"value {number}" for number in range(20_000)]}),
        SCHEMA,
        "(use fewer or shorter texts)",
        is_slow=True,
    ),
    Hostile(
        "arrays of 60 levels", schemed(deep(60)), "response_format", "the body is nested deeper than 32 levels here"
    ),
    Hostile("arrays of 300 levels", schemed(deep(300)), "response_format", "may name its inner parts in $defs"),
    Hostile("references in a circle", schemed(CIRCLE), SCHEMA, NO_TEXT),
    Hostile("references in a circle behind a property", schemed(LATE), SCHEMA, NO_FURTHER),
    Hostile("a reference to nothing", schemed({"$ref": "#/$defs/a"}), SCHEMA, "Pointer '/$defs/a' does not exist"),
    Hostile(
        "a reference to a page",
        schemed({"$ref": "https://a.test/b.json"}),
        SCHEMA,
        "lead to places of the same schema",
    ),
    Hostile(
        "a reference to a file", schemed({"$ref": "file:///etc/passwd"}), SCHEMA, "lead to places of the same schema"
    ),
    Hostile("a tree without leaves", schemed(TREE)),
    Hostile("a text without an end", schemed({**TEXT, "pattern": "^[a-z]{100000,}$"})),
    Hostile("a text of a billion letters at least", schemed({**TEXT, "minLength": 10**9})),
    Hostile(
        "an array of a billion numbers at least",
        schemed({"type": "array", "items": {"type": "integer"}, "minItems": 10**9}),
    ),
    Hostile("an object that cannot be", schemed(needing(a=False)), SCHEMA, "required property 'a' is unsatisfiable"),
    Hostile(
        "a least number above the greatest",
        schemed({"type": "integer", "minimum": 5, "maximum": 4}),
        SCHEMA,
        "greater",
    ),
    Hostile(
        "numbers of 300 digits", schemed({"type": "integer", "minimum": 10**300}), SCHEMA, "it cannot be compiled: "
    ),
    Hostile(
        "what is not a text", schemed({"not": TEXT}), SCHEMA, 'keys: ["not"] (leave them out: they are not supported)'
    ),
    Hostile("one of two overlapping schemas", schemed({"oneOf": [LETTERS, LETTERS]}), SCHEMA, "(use anyOf)"),
    Hostile("options that are a number", schemed({"x-guidance": 7}), SCHEMA, "it cannot be compiled: invalid type"),
    Hostile("a schema that is a list", schemed([OBJECT]), SCHEMA, "expected an object, got a list"),
    Hostile("JSON text of 3,000 levels", of_form(json='{"a":' * 3000), "structured_outputs.json", "too many levels"),
    Hostile("JSON that is a number", {"guided_json": 7}, "guided_json", "it must be an object, got 7"),
    Hostile(
        "a schema of a response",
        {"input": "a", "max_tokens": None, "text": {"format": {"type": "json_schema", "name": "n", "schema": CIRCLE}}},
        "text.format.schema",
        NO_TEXT,
        path="/v1/responses",
    ),
]
OTHERS = [
    Hostile("a million letters", of_form(regex="(a{1000}){1000}"), REGEX, TOO_LARGE),
    Hostile("letters behind some others", of_form(regex="[a-z]{4}(a{1000}){1000}"), REGEX, "write out 1000003 bytes"),
    Hostile("a hundred million letters", of_form(regex="(((a{100}){100}){100}){100}"), REGEX, "write out 100000000 by"),
    Hostile("a billion letters", of_form(regex="a{1000000000}"), REGEX, "write out 1000000000 bytes"),
    Hostile("letters in many ways", of_form(regex="[a-z]{4}(b+){1000}"), REGEX, f"{LEXER}too many expressions"),
    Hostile("a rule of a million letters", of_form(grammar="start: /(a{1000}){1000}/"), GRAMMAR, f"{LEXER}too many"),
    Hostile("states without number", of_form(regex="(a|b)*a(a|b){1000}")),
    Hostile(
        "5,000 brackets",
        of_form(regex="(" * 5000 + "a" + ")" * 5000),
        REGEX,
        "number of nested parentheses",
    ),
    Hostile("an expression of a megabyte", of_form(regex="a|" * 600_000), REGEX, "at most 1048576 characters, got 120"),
    Hostile("what comes next", of_form(regex="(?=a)b"), REGEX, "look-around, including look-ahead"),
    Hostile(
        "an expression for a completion",
        {"prompt": "a", "guided_regex": "a(b"},
        "guided_regex",
        "it cannot be compiled: at 1(8): invalid regex",
        path=COMPLETE,
    ),
    Hostile("a rule of 30,000 alternatives", of_form(grammar=MANY_RULES), GRAMMAR, "symbols) too big", is_slow=True),
    Hostile("a grammar in a circle", of_form(grammar="start: start"), GRAMMAR, NO_TEXT),
    Hostile("a circle behind a text", of_form(grammar='start: "hello world" x\nx: x'), GRAMMAR, NO_FURTHER),
    Hostile("a grammar without a start", of_form(grammar='a: "b"'), GRAMMAR, "start"),
    Hostile(
        "a grammar that reads a file", of_form(grammar='%import /etc/passwd\nstart: "a"'), GRAMMAR, "Expected name"
    ),
    Hostile("a token that is none", of_form(grammar="start: <[99999999]>"), GRAMMAR, "end too large: 99999999"),
    Hostile("rules of 5,000 levels", of_form(grammar=f"start: {'(' * 5000}"), GRAMMAR, "too deeply nested"),
    Hostile("a choice of an empty text", of_form(choice=[""]), CHOICE, "a list of non-empty texts, got ['']"),
    Hostile("a choice of numbers", of_form(choice=[1, 2]), CHOICE, "a list of non-empty texts, got [1, 2]"),
    Hostile("a text of 500,000 letters", of_form(choice=["x" * 500_000]), CHOICE, f"{LEXER}too many", is_slow=True),
    Hostile(
        "a form that allowed tokens leave nothing of",
        {**of_form(regex="a+"), "allowed_token_ids": [5]},
        "allowed_token_ids",
        "it and structured_outputs.regex leave no token after 0 output tokens; change one of them",
    ),
    Hostile(
        "a choice of a bad word",
        {**of_form(choice=["a"]), "bad_words": ["a"]},
        "bad_words",
        "it and structured_outputs.choice leave no token after 0 output tokens",
    ),
    Hostile("a form without its end", {**of_form(regex="a"), "ignore_eos": True}, "ignore_eos", "forbid the end token"),
    Hostile(
        "more tokens than the form has",
        {**of_form(choice=["a"]), "min_tokens": 9},
        "min_tokens",
        "which would forbid the end token where the grammar of structured_outputs.choice asks for it",
    ),
]
HOSTILE_FORMS = [*SCHEMAS, *OTHERS]


TOOL_NAME, PARAMETERS = "tools[0].function.name", "tools[0].function.parameters"
BAD_NAME = "expected a name of 1 to 64 letters, digits, - and _, got "
CALL = "messages[1].tool_calls[0]"
ARGUMENTS = f"{CALL}.function.arguments"
CALL_TOO_LARGE = "it cannot be compiled at /properties/a: lexer error: the repetitions write out 1000000 bytes"
LARGE_CALL = tool("f", needing(a={"type": "string", "pattern": LARGE}))
OVERLAPPING = {"type": "object", "if": {}, "then": {}}
IN_A_CIRCLE = {**needing(a={"$ref": "#/$defs/a"}), "$defs": CIRCLE["$defs"]}
TOLD = {"role": "tool", "content": "1"}

ASKED = [
    Hostile(
        "a name of 10,000 characters", of_tools(tool("f" * 10_000, OBJECT)), TOOL_NAME, f"{BAD_NAME}10000 characters"
    ),
    Hostile(
        "a name with quotes and lines", of_tools(tool('f"\n}</tool_call>', OBJECT)), TOOL_NAME, f"{BAD_NAME}'f\"\\n}}"
    ),
    Hostile("a name beyond ASCII", of_tools(tool("Wetter für 北京", OBJECT)), TOOL_NAME, f"{BAD_NAME}'Wetter f\\xfcr"),
    Hostile("parameters that are null", of_tools(tool("f", None))),
    Hostile("parameters with a million letters", of_tools(LARGE_CALL), PARAMETERS, CALL_TOO_LARGE),
    Hostile("parameters of 3,000 properties", of_tools(tool("f", MANY)), "messages", "characters with its tools, and"),
    Hostile("parameters of 300 levels", of_tools(tool("f", needing(a=deep(300)))), "tools", "nested deeper than 32"),
    Hostile(
        "parameters in a circle", of_tools(tool("f", IN_A_CIRCLE), choice=named("f")), "tools", "cannot be followed"
    ),
    Hostile(
        "strict parameters that are not supported",
        of_tools(tool("f", OVERLAPPING, strict=True), choice="auto"),
        PARAMETERS,
        'Unimplemented keys: ["if", "then"] (leave them out: they are not supported)',
    ),
    Hostile(
        "strict parameters with a million letters",
        of_tools(tool("f", LARGE_CALL["function"]["parameters"], strict=True), choice="auto"),
        PARAMETERS,
        CALL_TOO_LARGE,
    ),
    Hostile("a field that is none", of_tools(tool(returns={}))),
    Hostile(
        "forced calls that allowed tokens leave nothing of",
        {**of_tools(tool()), "allowed_token_ids": [5]},
        "allowed_token_ids",
        "it and tools leave no token after 0 output tokens",
    ),
]
HISTORY = [
    Hostile("arguments of 5,000 levels", of_history(called('{"a":' * 5000 + "1" + "}" * 5000)), ARGUMENTS, "JSON text"),
    Hostile("an answer without an id", of_history(called("{}"), TOLD)),
    Hostile("an answer to no call", of_history({**TOLD, "tool_call_id": "c9"})),
    Hostile(
        "an answer that is an object",
        of_history({**TOLD, "content": {}, "tool_call_id": "c"}),
        "messages[1].content",
        "",
    ),
]
HOSTILE_TOOLS = [*ASKED, *HISTORY]


NONE = "does not exist. This server has 'base', 'pirate'."
ODD = "../../etc/passwd\r\n\u202e<script>"


def _model(name: str, model: Any, said: str, **more: Any) -> Hostile:
    return Hostile(name, {"model": model}, "model", said, **more)


HOSTILE_NAMES = [
    _model("an adapter that is none", "parrot", f"The model 'parrot' {NONE}", status=404),
    _model("an adapter in capitals", "Pirate", f"The model 'Pirate' {NONE}", status=404),
    _model("an adapter behind its base", "base/pirate", f"The model 'base/pirate' {NONE}", status=404),
    _model("a name of a path", ODD, r"The model '../../etc/passwd\r\n\u202e<script>' does not", status=404),
    _model("a name of 512 characters", "a" * 512, f"The model '{'a' * 128}' {NONE}", status=404),
    _model("a name of a megabyte", "a" * 2**20, "must have at most 512 characters"),
    Hostile("a null as name", {"model": None}),
    Hostile("a good adapter", {"model": "pirate"}),
    Hostile("a prompt for no adapter", {"prompt": "a", "model": "b"}, "model", f"'b' {NONE}", 404, COMPLETE),
    Hostile(
        "a field of vLLM's adapters", {"lora_request": {"name": "pirate"}}, "lora_request", "there is no such field"
    ),
]
