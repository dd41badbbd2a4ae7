"""Requests that are wrong, each with the whole error that answers it, over the bundled pair (a context of 512)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

COMPLETE, CHAT = "/v1/completions", "/v1/chat/completions"
HELLO: dict[str, Any] = {"prompt": "hello", "max_tokens": 2}
MESSAGE = {"role": "user", "content": "hello"}
HI: dict[str, Any] = {"messages": [MESSAGE], "max_tokens": 2}

FORMS = "expected a string, a list of strings, a list of token ids or a list of such lists"
TOKEN_ID = "a token id is an integer from 0 to 2147483647"
UNSUPPORTED = "this server does not support it; leave it out", "unsupported_parameter"
NO_TOOLS = "this server does not support tools", "unsupported_parameter"
TEXT_ONLY = "this server takes text only", "unsupported_parameter"
UNKNOWN = "there is no such field", "unknown_parameter"
PART = 'expected an object with type "text" and a text'
BIAS = "expected an object from token ids to numbers from -100 to 100"
INTEGER = "expected an integer"
NUMBER = "expected a number"
BOOLEAN = "expected true or false"
NO_PATH = "There is no such path here."
NO_METHOD = "This path does not take this method."
DEEP = "The body is nested deeper than 32 levels."
NO_OBJECT = "The body must be a JSON object."
TWICE = "The body has the same key twice in one object."
SURROGATE = "The body has half of a surrogate pair (\\ud800 to \\udfff)."
NO_TYPE = "Send the body with the header Content-Type: application/json."
REQUIRED = "is required"
ROLES = "expected one of system, developer, user, assistant"
CONTENT = "expected a string, or a list of text parts"
STREAM = "it needs stream to be true"
OUTSIDE = "token id 100000 is outside the model's vocabulary of 3072"
MESSAGES = "expected a list of at least one message"
NAME = "expected a string of 1 to 64 characters"
ONE = "give a prompt or messages, and not both"
INT32 = "must be at most 2147483647"
STOPS = "expected a string or a list of at most 4 strings"


@dataclass(frozen=True)
class Bad:
    """A request to a path, and its error; `body` that is not bytes is sent as JSON."""

    name: str
    path: str
    body: Any
    status: int
    message: str
    param: str | None
    code: str | None
    method: str = "POST"
    headers: tuple[tuple[str, str], ...] = ()


def invalid(name: str, path: str, body: Any, message: str, param: str, code: str = "invalid_value") -> Bad:
    """A body with a value that is not allowed."""
    return Bad(name, path, body, 400, message, param, code)


def field(name: str, path: str, body: Any, param: str, what: str, code: str = "invalid_value") -> Bad:
    """A body with a wrong field, which the message begins with."""
    return invalid(name, path, body, f"{param}: {what}", param, code)


def completion(name: str, param: str, what: str, code: str = "invalid_value", /, **fields: Any) -> Bad:
    """A completion that would be right without these fields."""
    return field(name, COMPLETE, {**HELLO, **fields}, param, what, code)


def chat(name: str, param: str, what: str, code: str = "invalid_value", /, **fields: Any) -> Bad:
    """A chat that would be right without these fields."""
    return field(name, CHAT, {**HI, **fields}, param, what, code)


def message(name: str, param: str, what: str, code: str = "invalid_value", /, **fields: Any) -> Bad:
    """A chat that would be right without these fields of its second message."""
    return chat(name, f"messages[1].{param}", what, code, messages=[MESSAGE, {**MESSAGE, **fields}])


def no_json(name: str, path: str, body: bytes, message: str, param: str | None = None) -> Bad:
    """A body that is not strict JSON."""
    return Bad(name, path, body, 400, message, param, "invalid_json")


def no_model(name: str, path: str, body: Any, shown: str) -> Bad:
    """A model that is not here; without a body, at its own path."""
    message = f"The model '{shown}' does not exist."
    return Bad(name, path, body, 404, message, "model", "model_not_found", "GET" if body is None else "POST")


def too_long(name: str, path: str, body: Any, param: str, length: int | str) -> Bad:
    """A prompt that leaves no room."""
    message = f"This model's context is 512 tokens, for prompt and output together; the prompt has {length}."
    return Bad(name, path, body, 400, message, param, "context_length_exceeded")


def no_route(name: str, path: str, body: Any, status: int, method: str = "POST") -> Bad:
    """A path, or a method of one, that is not there."""
    message, code = (NO_PATH, "unknown_url") if status == 404 else (NO_METHOD, "method_not_allowed")
    return Bad(name, path, body, status, message, None, code, method)
