"""Chats with a field or a message that is wrong."""

from typing import Any

from tests.endpoint.requests.bad_requests import (
    BOOLEAN,
    CHAT,
    HI,
    LEAST_0,
    LEAST_1,
    MESSAGE,
    UNKNOWN,
    UNSUPPORTED,
    chat,
    message,
    too_long,
    too_many,
    wrong_values,
)

MESSAGES = "expected a list of at least one message"
ROLE = "expected a word, such as system, user, assistant or tool, got"
NO_CALLS = "a message of the role 'user' has no calls", "unsupported_parameter"
NO_PLACE = (
    "the chat template of this model has no place for tools; a call can only be forced by tool_choice",
    "unsupported_parameter",
)
NO_VARIABLE = "the chat template of this model has no such variable", "unsupported_parameter"
OTHER_TOOL = 'expected "function"; other tools are not supported', "unsupported_parameter"
CHOICES = 'expected none, auto, required, or {"type": "function", "function": {"name": ...}}'
NAME = "expected a name of 1 to 64 letters, digits, - and _"
CALL_ID = "expected the id of a call, a string of 1 to 256 characters"
F: dict[str, Any] = {"type": "function", "function": {"name": "f"}}
RESULT = {**MESSAGE, "role": "tool", "tool_call_id": "1"}
CALLED: dict[str, Any] = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def function(**fields: Any) -> dict[str, Any]:
    """Return a tool with these fields of its function."""
    return {"type": "function", "function": {"name": "f", **fields}}


def tools_with(**fields: Any) -> list[list[dict[str, Any]]]:
    """Return a list of tools, the second of which has these fields of its function."""
    return [[F, function(**{"name": "g", **fields})]]


def called(**fields: Any) -> list[list[dict[str, Any]]]:
    """Return a message's list of calls, whose function has these fields."""
    return [[{**CALLED, "function": {"name": "f", "arguments": "{}", **fields}}]]


CONTENT = "expected a string, or a list of text parts"
PART = 'expected an object with type "text" and a text'
NO_FIELD = "it is not supported; leave it out", "unsupported_parameter"


def no_part(kind: str) -> tuple[str, str]:
    """Return the message and the code for a part of this type."""
    return f"'{kind}' is not supported, only text parts are", "unsupported_parameter"


BAD_CHATS = [
    *wrong_values(
        chat,
        ("messages", MESSAGES, [None, "hello", MESSAGE, []]),
        ("messages[0]", "expected an object with role and content", [["hello"], [None]]),
        ("messages[0].role", f"{ROLE} None", [[{}]]),
        ("top_logprobs", "it needs logprobs to be true", [2]),
        ("logprobs", BOOLEAN, [2, 0]),
        ("max_completion_tokens", LEAST_1, [0, -5]),
        ("max_tokens", LEAST_1, [0]),
        ("tools", NO_PLACE, [[F]]),
        ("tools", "expected a list of functions", ["[]", 3, {}]),
        ("tools", "expected at most 128 functions, got 129", [[function(name=f"f{i}") for i in range(129)]]),
        ("tools[0]", 'expected an object with type "function" and a function', [["f"]]),
        ("tools[0].type", OTHER_TOOL, [[{"type": "web_search"}]]),
        ("tools[0].type", 'expected "function"; other tools are not supported', [[{}]]),
        ("tools[0].function", "expected an object with a name", [[{"type": "function"}]]),
        ("tools[0].strict", "it is a field of the function; put it there", [[{**F, "strict": True}]]),
        ("tools[1].function.name", f"{NAME}, got 'a b'", tools_with(name="a b")),
        ("tools[1].function.name", "another function of the list has this name", tools_with(name="f")),
        ("tools[1].function.description", "expected a string", tools_with(description=1)),
        ("tools[1].function.strict", BOOLEAN, tools_with(strict="yes")),
        ("tools[1].function.parameters", "expected a JSON Schema, an object", tools_with(parameters=[])),
        (
            "tools[1].function.parameters.type",
            'expected "object": the arguments of a call are an object',
            tools_with(parameters={"type": "string"}),
        ),
        ("tool_choice", "it needs tools, and there are none", ["required"]),
        ("parallel_tool_calls", BOOLEAN, ["no", 1]),
        ("chat_template_kwargs", "expected an object", [["a"]]),
        ("chat_template_kwargs.enable_thinking", NO_VARIABLE, [{"enable_thinking": True}]),
        (
            "chat_template_kwargs.messages",
            "the chat template gets this name from elsewhere; leave it out",
            [{"messages": []}],
        ),
        ("continue_final_message", "the last message is not the assistant's", [True]),
        ("functions", UNSUPPORTED, [[{"name": "f"}]]),
        ("function_call", UNSUPPORTED, [{"name": "f"}]),
        ("modalities", UNSUPPORTED, [["text", "audio"]]),
        ("audio", UNSUPPORTED, [{"voice": "a"}]),
        ("prediction", UNSUPPORTED, [{"type": "content", "content": "a"}]),
        ("reasoning_effort", NO_VARIABLE, ["high"]),
        ("web_search_options", UNSUPPORTED, [{}]),
        ("verbosity", UNSUPPORTED, ["low"]),
        ("echo", UNKNOWN, [True]),
        ("best_of", UNKNOWN, [2]),
        ("prompt", UNKNOWN, ["a"]),
    ),
    *wrong_values(chat, ("top_logprobs", "must be at most 20", [21]), ("top_logprobs", LEAST_0, [-1]), logprobs=True),
    too_long(CHAT, {**HI, "messages": [{"role": "user", "content": "word " * 1000}]}, "messages", 2004),
    too_many(CHAT, {**HI, "n": 200}, 200),
    *wrong_values(
        message,
        ("role", f"{ROLE} 1", [1]),
        ("role", f"{ROLE} 'a|b'", ["a|b"]),
        ("tool_calls", NO_CALLS, [[CALLED]]),
        ("content", CONTENT, [None, 7, {"text": "a"}, []]),
        ("content[0]", PART, [["a"], [{"text": "a"}]]),
        ("content[0].text", "expected a string", [[{"type": "text"}], [{"type": "text", "text": 1}]]),
        ("content[0].type", no_part("image_url"), [[{"type": "image_url", "image_url": {"url": "http://h/"}}]]),
        ("content[0].type", no_part("\\u20ac"), [[{"type": "\u20ac"}]]),
        ("name", "expected a string", [7]),
        ("refusal", NO_FIELD, ["no"]),
        ("function_call", NO_FIELD, [{"name": "f"}]),
    ),
    *wrong_values(
        chat,
        ("tool_choice", CHOICES, ["any", 1, {"name": "f"}]),
        ("tool_choice.type", ("this server supports function alone", "unsupported_parameter"), [{"type": "custom"}]),
        ("tool_choice.function", "expected an object with a name", [{"type": "function"}]),
        (
            "tool_choice.function.name",
            "no function of tools has this name; they are f",
            [{"type": "function", "function": {"name": "g"}}],
        ),
        tools=[F],
    ),
    chat(
        "a schema of a forced call that no grammar can hold",
        "tools[0].function.parameters",
        "it cannot be compiled at /properties/a: Invalid type: integral",
        tools=[function(parameters={"properties": {"a": {"type": "integral"}}})],
        tool_choice="required",
    ),
    chat("a tool without a name", "tools[0].function.name", f"{NAME}, got ''", tools=[function(name="")]),
    chat(
        "a tool with a long name",
        "tools[0].function.name",
        f"{NAME}, got 65 characters",
        tools=[function(name="n" * 65)],
    ),
    chat(
        "forced calls without an end",
        "tool_choice",
        "calls are held to a grammar here: ignore_eos is True, which would forbid the end token where the grammar of "
        "the calls asks for it; leave it out, or ask for longer output in the grammar",
        tools=[F],
        tool_choice="required",
        ignore_eos=True,
    ),
    chat(
        "a message that is continued and one that begins",
        "continue_final_message",
        "it contradicts add_generation_prompt, which is true as well",
        continue_final_message=True,
        add_generation_prompt=True,
    ),
    *wrong_values(
        message,
        ("tool_calls", "expected a list of at least one call", ["f", {"a": 1}]),
        ("tool_calls[0]", "expected an object with id, type and function", [["f"]]),
        ("tool_calls[0].type", 'expected "function"', [[{**CALLED, "type": "custom"}]]),
        ("tool_calls[0].id", CALL_ID, [[{**CALLED, "id": 7}]]),
        ("tool_calls[0].function", "expected an object with name and arguments", [[{"id": "1", "type": "function"}]]),
        ("tool_calls[0].function.name", f"{NAME}, got 'a b'", called(name="a b")),
        ("tool_calls[0].function.arguments", "expected JSON text of an object", called(arguments="{")),
        ("tool_calls[0].function.arguments", "expected an object, or JSON text of one", called(arguments="[]")),
        ("reasoning", "expected a string", [7]),
        role="assistant",
    ),
    *wrong_values(message, ("tool_call_id", CALL_ID, ["", 7, "i" * 257]), role="tool"),
    chat(
        "calls that the template would leave out",
        "messages[1].tool_calls",
        "the chat template of this model has no place for it",
        messages=[MESSAGE, {"role": "assistant", "tool_calls": [CALLED]}, RESULT],
    ),
    chat(
        "calls that are to be continued",
        "messages[1].tool_calls",
        "the last message has calls and cannot be continued; add messages of the role tool",
        messages=[MESSAGE, {"role": "assistant", "tool_calls": [CALLED]}],
    ),
]
