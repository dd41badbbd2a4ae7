"""Tools, choices of them and calls in history that are too large, contradict each other or are nonsense."""

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
    Hostile("a name with quotes and lines", of_tools(tool('f"\n}</tool_call>', OBJECT)), NAME, f"{NAMES}'f\"\\n}}"),
    Hostile("a name beyond ASCII", of_tools(tool("Wetter für 北京", OBJECT)), NAME, f"{NAMES}'Wetter f\\xfcr"),
    Hostile("parameters that are null", of_tools(tool("f", None))),
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
