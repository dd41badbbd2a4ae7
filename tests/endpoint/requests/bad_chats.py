"""Chats with a field or a message that is wrong."""

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
ROLES = "expected one of system, developer, user, assistant"
NO_TOOLS = "this server does not support tools", "unsupported_parameter"
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
        ("messages[0].role", ROLES, [[{}]]),
        ("top_logprobs", "it needs logprobs to be true", [2]),
        ("logprobs", BOOLEAN, [2]),
        ("max_completion_tokens", LEAST_1, [0, -5]),
        ("max_tokens", LEAST_1, [0]),
        ("tools", UNSUPPORTED, [[{"type": "function", "function": {"name": "f"}}]]),
        ("tool_choice", UNSUPPORTED, ["required"]),
        ("functions", UNSUPPORTED, [[{"name": "f"}]]),
        ("function_call", UNSUPPORTED, [{"name": "f"}]),
        ("response_format", UNSUPPORTED, [{"type": "json_schema", "json_schema": {}}]),
        ("modalities", UNSUPPORTED, [["text", "audio"]]),
        ("audio", UNSUPPORTED, [{"voice": "a"}]),
        ("prediction", UNSUPPORTED, [{"type": "content", "content": "a"}]),
        ("reasoning_effort", UNSUPPORTED, ["high"]),
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
        ("role", ROLES, [None, "robot", 1, "USER"]),
        ("role", NO_TOOLS, ["tool", "function"]),
        ("content", CONTENT, [None, 7, {"text": "a"}, []]),
        ("content[0]", PART, [["a"], [{"text": "a"}]]),
        ("content[0].text", "expected a string", [[{"type": "text"}], [{"type": "text", "text": 1}]]),
        ("content[0].type", no_part("image_url"), [[{"type": "image_url", "image_url": {"url": "http://h/"}}]]),
        ("content[0].type", no_part("\\u20ac"), [[{"type": "\u20ac"}]]),
        ("content[0].cache_control", NO_FIELD, [[{"type": "text", "text": "a", "cache_control": {}}]]),
        ("name", "expected a string of 1 to 64 characters", [7, "", "n" * 65]),
        ("refusal", UNSUPPORTED, ["no"]),
    ),
    *wrong_values(message, ("tool_calls", UNSUPPORTED, [[{"id": "1"}]]), role="assistant"),
]
