"""Errors of the endpoint: what can go wrong with a request, and the answer that the client gets.

A client sees an ApiError and nothing else, in the OpenAI API's form. Every other exception becomes one on its way out:

    ApiError                        as it says: status, message, type, param, code
    ├ at the gate and the edge      400 401 404 405 408 413 414 415 429 431   gate/, edge/
    └ from a prompt                 400 context_length_exceeded, 429          service/encoder.py
    FieldError                      400  a field of the body, by the table of pipeline/requests    edge/install.py
    RequestValidationError          400  the first wrong parameter of a query         edge/install.py
    HTTPException                   404 unknown_url, 405 method_not_allowed           edge/install.py
    raised by a replica, or by Ray over one (service/backend.py, `as_api_error`)
    ├ RefusedError                  400 invalid_value                         `refusal`
    ├ a sample that its request's parameters leave no token    400            answers/choices.py
    ├ BusyError, BackPressureError  429 server_busy
    ├ FailedError                   500 generation_failed
    ├ EnginesLostError              500 engine_lost
    ├ OtherModelError               503 model_unavailable, after the gate has looked for another ingress
    ├ RayActorError, ...Unavailable 503 model_unavailable
    └ DeadlineError                 504 deadline_exceeded
    BrokenAnswerError               none: the answer had begun, so the connection is closed   edge/install.py
    any other Exception             500 without details; a stream that had begun ends with internal_error
"""

import json
from collections.abc import Mapping
from typing import Any

from starlette.types import Send

CLOSE = {"connection": "close"}
_REPLACED = "x-dray-replaced"
_TYPES = {429: "rate_limit_error", 504: "timeout_error"}
_SAMPLING, _STRUCTURED = "sampling.", "sampling.structured"


class ApiError(Exception):
    """A request that is answered with an error. Its message is for the client: no path, prompt or traceback in it."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Take the HTTP `status`, and in `param` the field of the request that is wrong."""
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.type = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
        self.headers = dict(headers or {})

    def envelope(self) -> dict[str, Any]:
        """Return the body of the answer."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


async def refuse(send: Send, error: ApiError, *, is_last: bool = True) -> None:
    """Send an error as the whole answer. With `is_last` false the connection stays open until `finish` is called."""
    body = json.dumps(error.envelope()).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), **error.headers}
    raw_headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": raw_headers})
    await send({"type": "http.response.body", "body": body, "more_body": not is_last})


async def finish(send: Send) -> None:
    """End an answer whose last part said that more would come."""
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def wrong(param: str, message: str, code: str = "invalid_value") -> ApiError:
    """Return the error for a field that does not hold what it must."""
    return ApiError(400, f"{param}: {message}", param=param, code=code)


def model_unavailable(headers: Mapping[str, str] | None = None) -> ApiError:
    """Return the error for a request that no process can answer now: they are starting, ending, or were lost."""
    message = "The model is not available now. Try again in a moment."
    return ApiError(503, message, code="model_unavailable", headers={"Retry-After": "1", **(headers or {})})


def model_replaced() -> ApiError:
    """Return the error of an ingress whose engines an update has replaced; only an ingress of the update can answer.

    The gate looks for such an ingress, so a client sees this error only if there is none for too long.
    """
    return model_unavailable({_REPLACED: "1"})


def ingress_lost(*, may_repeat: bool = True) -> ApiError:
    """Return the error for a request whose ingress was lost; it may not be repeated if several were lost over it."""
    if may_repeat:
        message = "The process that answered this request was lost. Try again in a moment."
        return ApiError(503, message, code="ingress_lost", headers={"Retry-After": "1"})
    message = "The process that answered this request was lost, and so was the one that was asked instead."
    return ApiError(500, f"{message} It is not tried again.", code="ingress_lost")


def is_model_replaced(start: Mapping[str, Any]) -> bool:
    """Tell whether an answer is a `model_replaced` error, by the ASGI message that begins it."""
    return start["status"] == 503 and any(bytes(name).lower() == _REPLACED.encode() for name, _ in start["headers"])


def generation_failed() -> ApiError:
    """Return the error for a request that the model failed over."""
    return ApiError(500, "The model failed over this request.", code="generation_failed")


def server_busy(why: str, headers: Mapping[str, str] | None = None) -> ApiError:
    """Return the error for a request that found a queue full and was not begun."""
    message = f"The server is busy: {why}. Try again in a moment."
    return ApiError(429, message, code="server_busy", headers={"Retry-After": "1", **(headers or {})})


def context_exceeded(param: str, max_model_len: int, got: str) -> ApiError:
    """Return the error for a prompt that leaves no room for output; `got` says how long the prompt is."""
    message = f"This model's context is {max_model_len} tokens, for prompt and output together; the prompt has {got}."
    return ApiError(400, message, param=param, code="context_length_exceeded")


def refusal(message: str, form_field: str | None) -> ApiError:
    """Return the error (400) for a message that may begin with the path of a parameter ("sampling.structured.regex").

    `form_field` is the path of the field by which the request asks for a form; None if it has none, so that a grammar
    is that of its tools.
    """
    if message.startswith(_STRUCTURED):
        path, _, said = message.partition(" ")
        where = form_field or "tools"
        if path == _STRUCTURED:  # of the whole form, and of no kind of it
            where = where.partition(".")[0]
        return wrong(where, said if path.endswith(":") else f"it {said}")
    is_named = message.startswith(_SAMPLING) and " " in message
    param, _, said = message.removeprefix(_SAMPLING).partition(" ")
    if said.startswith("leaves "):
        said = f"it {said}; change it"
    elif said.startswith("and "):  # several parameters leave nothing together
        said = f"it {said}; change one of them"
    said = said.replace(_STRUCTURED, form_field or "tools").replace(_SAMPLING, "")
    if is_named:
        return wrong(param.rstrip(":"), said)
    return ApiError(
        400, message.replace(_STRUCTURED, form_field or "tools").replace(_SAMPLING, ""), code="invalid_value"
    )
