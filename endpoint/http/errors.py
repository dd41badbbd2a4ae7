"""Errors as the OpenAI API writes them: a status, and an object with message, type, param and code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_REPLACED = "x-dray-replaced"


class ApiError(Exception):
    """A request that is answered with an error. Its message is for the client: no path, prompt or traceback in it."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`status` is the HTTP status, `param` the request's field that is wrong."""
        super().__init__(message)
        self.status, self.message, self.type, self.param, self.code = status, message, type, param, code
        self.headers = dict(headers or {})

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self.status, self.message, self.type, self.param, self.code, self.headers)

    def envelope(self) -> dict[str, Any]:
        """The body of the answer."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


def _again(
    status: int, message: str, type: str, param: str | None, code: str | None, headers: dict[str, str]
) -> ApiError:
    return ApiError(status, message, type=type, param=param, code=code, headers=headers)


def model_unavailable() -> ApiError:
    """The answer where no process is there that could give one: they start, end, or were lost."""
    return ApiError(
        503,
        "The model is not available now. Try again in a moment.",
        type="server_error",
        code="model_unavailable",
        headers={"Retry-After": "1"},
    )


def model_replaced() -> ApiError:
    """The answer of a process whose engines an update has replaced: whoever hears it asks the one that came with them.

    The gate does, so that clients do not see it, unless it takes too long.
    """
    error = model_unavailable()
    error.headers[_REPLACED] = "1"
    return error


def is_to_ask_again(start: Mapping[str, Any]) -> bool:
    """Whether an answer that begins so (an ASGI message) is that one."""
    return start["status"] == 503 and any(bytes(name).lower() == _REPLACED.encode() for name, _ in start["headers"])


def generation_failed() -> ApiError:
    """The answer where the model failed over one request."""
    return ApiError(500, "The model failed over this request.", type="server_error", code="generation_failed")


def server_busy(why: str) -> ApiError:
    """The answer where a queue is full; nothing has been done."""
    return ApiError(
        429,
        f"The server is busy: {why}. Try again in a moment.",
        type="rate_limit_error",
        code="server_busy",
        headers={"Retry-After": "1"},
    )


def context_exceeded(param: str, max_model_len: int, got: str) -> ApiError:
    """The answer to a prompt that leaves no room for output; `got` says how long it is."""
    return ApiError(
        400,
        f"This model's context is {max_model_len} tokens, for prompt and output together; the prompt has {got}.",
        param=param,
        code="context_length_exceeded",
    )
