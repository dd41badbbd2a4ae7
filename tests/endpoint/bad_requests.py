"""Requests that are wrong, each with the whole error that answers it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

COMPLETE, CHAT = "/v1/completions", "/v1/chat/completions"


@dataclass(frozen=True)
class Bad:
    """A request to a path, and its error; `body` that is not bytes is sent as JSON."""

    name: str
    path: str
    body: Any
    status: int = 400
    message: str = ""
    param: str | None = None
    code: str | None = "invalid_value"
    method: str = "POST"
    headers: tuple[tuple[str, str], ...] = ()


def completion(
    name: str, message: str = "", param: str | None = None, code: str | None = "invalid_value", /, **body: Any
) -> Bad:
    """Of a completion that would be right but for these fields."""
    return Bad(name, COMPLETE, {"prompt": "hello", "max_tokens": 2, **body}, 400, message, param, code)


def chat(
    name: str, message: str = "", param: str | None = None, code: str | None = "invalid_value", /, **body: Any
) -> Bad:
    """Of a chat that would be right but for these fields."""
    right = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
    return Bad(name, CHAT, {**right, **body}, 400, message, param, code)


def said(
    name: str, message: str = "", param: str | None = None, code: str | None = "invalid_value", /, **fields: Any
) -> Bad:
    """Of a chat whose second message is this."""
    first = {"role": "user", "content": "hello"}
    return chat(name, message, param, code, messages=[first, {"role": "user", "content": "a", **fields}])


NAN = float("nan")
