"""Tools, choices of them and calls in history that are too large, contradict each other or are nonsense."""

from tests.endpoint.requests.bad_requests import MESSAGE
from tests.endpoint.requests.hostile import (
    CIRCLE,
    LARGE,
    MANY,
    OBJECT,
    Hostile,
    called,
    deep,
    named,
    needing,
    of_history,
    of_tools,
    tool,
)

NAME, PARAMETERS = "tools[0].function.name", "tools[0].function.parameters"
NAMES = "expected a name of 1 to 64 letters, digits, - and _, got "
CALL = "messages[1].tool_calls[0]"
ARGUMENTS = f"{CALL}.function.arguments"
TOO_LARGE = "it cannot be compiled at /properties/a: lexer error: the repetitions write out 1000000 bytes"
LARGE_CALL = tool("f", needing(a={"type": "string", "pattern": LARGE}))
OVERLAPPING = {"type": "object", "if": {}, "then": {}}
IN_A_CIRCLE = {**needing(a={"$ref": "#/$defs/a"}), "$defs": CIRCLE["$defs"]}
NO_FUNCTION = {"role": "assistant", "content": None, "tool_calls": [{"id": "c"}]}
TOLD = {"role": "tool", "content": "1"}

ASKED = [
    Hostile("a name of 10,000 characters", of_tools(tool("f" * 10_000, OBJECT)), NAME, f"{NAMES}10000 characters"),
    Hostile("an empty name", of_tools(tool("", OBJECT)), NAME, f"{NAMES}''"),
    Hostile("a name with quotes and lines", of_tools(tool('f"\n}</tool_call>', OBJECT)), NAME, f"{NAMES}'f\"\\n}}"),
    Hostile("a name beyond ASCII", of_tools(tool("Wetter für 北京", OBJECT)), NAME, f"{NAMES}'Wetter f\\xfcr"),
    Hostile("a name that is a number", of_tools(tool(7, OBJECT)), NAME, f"{NAMES}7"),
    Hostile("parameters that are a list", of_tools(tool("f", [1])), PARAMETERS, "expected a JSON Schema, an object"),
    Hostile("parameters that are a text", of_tools(tool("f", "{}")), PARAMETERS, "expected a JSON Schema, an object"),
    Hostile(
        "parameters of an array", of_tools(tool("f", {"type": "array"})), f"{PARAMETERS}.type", 'expected "object"'
    ),
    Hostile("parameters that are null", of_tools(tool("f", None))),
    Hostile(
        "parameters that cannot be compiled",
        of_tools(tool("f", {"properties": {"a": {"type": "objekt"}}})),
        PARAMETERS,
        "it cannot be compiled at /properties/a: Invalid type: objekt",
    ),
    Hostile("parameters with a million letters", of_tools(LARGE_CALL), PARAMETERS, TOO_LARGE),
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
        TOO_LARGE,
    ),
    Hostile("strict that is a text", of_tools(tool("f", OBJECT, strict="yes")), "tools[0].function.strict", "true or"),
    Hostile(
        "a description that is a list", of_tools(tool(description=["a"])), "tools[0].function.description", "a string"
    ),
    Hostile("a field that is none", of_tools(tool(returns={}))),
    Hostile(
        "a thousand tools", of_tools(*[tool(f"f{i}", OBJECT) for i in range(1000)]), "tools", "at most 128 functions"
    ),
    Hostile("the same name twice", of_tools(tool(), tool()), "tools[1].function.name", "another function of the list"),
    Hostile("no tools", of_tools(), "tool_choice", "it needs tools, and there are none"),
    Hostile("tools that are an object", {"tools": {"f": tool()}}, "tools", "expected a list of functions"),
    Hostile("a tool that is a text", of_tools("f"), "tools[0]", 'expected an object with type "function"'),
    Hostile("a tool that searches", of_tools({"type": "web_search"}), "tools[0].type", "other tools are not supported"),
    Hostile(
        "a choice of an unknown name", of_tools(tool(), choice=named("g")), "tool_choice.function.name", "they are f"
    ),
    Hostile("a choice of a number", of_tools(tool(), choice=7), "tool_choice", "expected none, auto, required, or"),
    Hostile(
        "a choice of nothing", of_tools(tool(), choice={"type": "function"}), "tool_choice.function", "with a name"
    ),
    Hostile("a choice without tools", {"tool_choice": "required"}, "tool_choice", "it needs tools"),
    Hostile(
        "calls at once that are a text",
        {**of_tools(tool()), "parallel_tool_calls": "no"},
        "parallel_tool_calls",
        "true",
    ),
    Hostile(
        "forced calls without an end", {**of_tools(tool()), "ignore_eos": True}, "tool_choice", "forbid the end token"
    ),
    Hostile(
        "forced calls that allowed tokens leave nothing of",
        {**of_tools(tool()), "allowed_token_ids": [5]},
        "allowed_token_ids",
        "it and tools leave no token after 0 output tokens",
    ),
]
HISTORY = [
    Hostile("arguments that are not JSON", of_history(called('{"a": ')), ARGUMENTS, "expected JSON text of an object"),
    Hostile(
        "arguments that are a list", of_history(called("[1]")), ARGUMENTS, "expected an object, or JSON text of one"
    ),
    Hostile("arguments that are a number", of_history(called(7)), ARGUMENTS, "expected an object, or JSON text of one"),
    Hostile("arguments of 5,000 levels", of_history(called('{"a":' * 5000 + "1" + "}" * 5000)), ARGUMENTS, "JSON text"),
    Hostile("a call without a function", of_history(NO_FUNCTION), f"{CALL}.function", "with name and arguments"),
    Hostile("a call of an id that is a number", of_history(called("{}", id=7)), f"{CALL}.id", "1 to 256 characters"),
    Hostile(
        "calls that are an object",
        of_history({"role": "assistant", "tool_calls": {}}),
        "messages[1].tool_calls",
        "a list",
    ),
    Hostile("an answer without an id", of_history(called("{}"), TOLD)),
    Hostile("an answer to no call", of_history({**TOLD, "tool_call_id": "c9"})),
    Hostile(
        "an answer that is an object",
        of_history({**TOLD, "content": {}, "tool_call_id": "c"}),
        "messages[1].content",
        "",
    ),
    Hostile("calls of a user", of_history({**MESSAGE, "tool_calls": [{}]}), "messages[1].tool_calls", "has no calls"),
]
HOSTILE_TOOLS = [*ASKED, *HISTORY]
