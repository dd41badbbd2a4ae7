"""Requests that are wrong, each with the whole error that answers it, over the bundled pair (a context of 512)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipeline.requests.asked import Asked
from tests.endpoint.in_process import BUNDLED_MODEL

COMPLETE, CHAT = "/v1/completions", "/v1/chat/completions"
HELLO: dict[str, Any] = {"prompt": "hello", "max_tokens": 2}
MESSAGE = {"role": "user", "content": "hello"}
HI: dict[str, Any] = {"messages": [MESSAGE], "max_tokens": 2}

TOKEN_ID = "a token id is an integer from 0 to 2147483647"
OUTSIDE = "token id 100000 is outside the model's vocabulary of 3072"
UNSUPPORTED = "this server does not support it; leave it out", "unsupported_parameter"
UNKNOWN = "there is no such field", "unknown_parameter"
BOOLEAN = "expected true or false"
LEAST_0, LEAST_1 = "must be at least 0", "must be at least 1"


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


def wrong_values(
    make: Callable[..., Bad], *rows: tuple[str, str | tuple[str, str], Sequence[Any]], **fields: Any
) -> list[Bad]:
    """Bad requests that `make` makes of a wrong field's path, what it must be, and each of several values."""
    return [
        make(
            f"a {make.__name__} with {param} from {value!r:.60} {what!r:.40}",
            param,
            *((what,) if isinstance(what, str) else what),
            **{param.partition("[")[0].partition(".")[0]: value, **fields},
        )
        for param, what, values in rows
        for value in values
    ]


def no_json(name: str, body: bytes, message: str, param: str | None = None) -> Bad:
    """A body that is not strict JSON."""
    return Bad(name, COMPLETE, body, 400, message, param, "invalid_json")


def no_model(path: str, body: Any, shown: str) -> Bad:
    """A model that is not here; without a body, at its own path."""
    name = f"{path} of the model '{shown}'"
    message = f"The model '{shown}' does not exist. This server has '{BUNDLED_MODEL}'."
    return Bad(name, path, body, 404, message, "model", "model_not_found", "GET" if body is None else "POST")


def shared(bad_completions: list[Bad]) -> list[Bad]:
    """Completions whose wrong fields a chat has as well, as chats, which get the same error."""
    return [
        replace(bad, name=f"{bad.name}, in a chat", path=CHAT, body={**HI, **changed})
        for bad in bad_completions
        if (changed := {name: value for name, value in bad.body.items() if HELLO.get(name) is not value})
        and changed.keys() <= Asked.table().keys() | {"no_such_field"}
    ]


def too_long(path: str, body: Any, param: str, length: int | str) -> Bad:
    """A prompt that leaves no room."""
    message = f"This model's context is 512 tokens, for prompt and output together; the prompt has {length}."
    return invalid(f"{path} with a {param} of {length}", path, body, message, param, "context_length_exceeded")


def too_many(path: str, body: Any, num_choices: int) -> Bad:
    """A request for more choices than the server takes."""
    asked = f"The request asks for {num_choices} choices (prompts x n, or x best_of)"
    message = f"{asked}, and this server takes at most 128."
    return invalid(f"{path} with {num_choices} choices", path, body, message, "n")


def no_route(name: str, path: str, body: Any, status: int, method: str = "POST") -> Bad:
    """A path, or a method of one, that is not there."""
    if status == 404:
        return Bad(name, path, body, status, "There is no such path here.", None, "unknown_url", method)
    return Bad(name, path, body, status, "This path does not take this method.", None, "method_not_allowed", method)
