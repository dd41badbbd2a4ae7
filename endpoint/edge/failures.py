"""Failures: how an exception becomes an answer in the OpenAI form, which names the wrong field or says no more."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from endpoint.http.errors import ApiError, refuse, shown_name
from pipeline.logs import failure_event

_log = logging.getLogger(__name__)
_MESSAGES = {
    400: "The request cannot be read.",
    404: "There is no such path here.",
    405: "This path does not take this method.",
}
_CODES = {404: "unknown_url", 405: "method_not_allowed"}
_FIELD_CODES = {"missing": "missing_required_parameter", "extra_forbidden": "unknown_parameter"}

# Our words for pydantic's kinds of errors (https://docs.pydantic.dev/latest/errors/validation_errors/).
_WORDS = {
    "missing": "is required",
    "extra_forbidden": "there is no such field",
    "bool_type": "expected true or false",
    "int_type": "expected an integer",
    "int_from_float": "expected an integer",
    "float_type": "expected a number",
    "finite_number": "expected a finite number",
    "string_type": "expected a string",
    "list_type": "expected a list",
    "dict_type": "expected an object",
    "model_type": "expected an object",
    "model_attributes_type": "expected an object",
    "literal_error": "expected {expected}",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "too_short": "must have at least {min_length}",
    "too_long": "must have at most {max_length}, got {actual_length}",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
}


def install_handlers(app: FastAPI) -> None:
    """Install handlers for what the application raises on purpose; the middleware `Failures` answers the rest."""

    async def api_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, ApiError)
        return _answer(error)

    async def validation_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        return _answer(invalid_field(error.errors(), error.body))

    async def http_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        status = error.status_code
        message = _MESSAGES.get(status, "The request cannot be answered.")
        return _answer(ApiError(status, message, code=_CODES.get(status), headers=error.headers))

    app.add_exception_handler(ApiError, api_error)
    app.add_exception_handler(RequestValidationError, validation_error)
    app.add_exception_handler(HTTPException, http_error)


def invalid_field(errors: Sequence[Mapping[str, Any]], body: object) -> ApiError:
    """Return a 400 for the first field that pydantic found wrong; `param` is its path, as in messages[0].role.

    The message says what the field must be, and nothing that the client sent except the names of its fields.
    """
    paths = [_path(error["loc"], body, is_missing=error["type"] == "missing") for error in errors]
    first = [_in_our_words(error) for path, error in zip(paths, errors, strict=True) if path == paths[0]]
    problems = "; or: ".join([*dict.fromkeys(first)][:4])
    code = _FIELD_CODES.get(errors[0]["type"], "invalid_value")
    return ApiError(400, f"{paths[0] or 'the body'}: {problems}", param=paths[0] or None, code=code)


def _in_our_words(error: Mapping[str, Any]) -> str:
    words = _WORDS.get(error["type"])
    if words is None:
        return str(error["msg"]).removeprefix("Value error, ")
    limits = error.get("ctx", {}).items()  # 2.0 is shown as 2
    return words.format(**{k: int(v) if isinstance(v, float) and v.is_integer() else v for k, v in limits})


def _path(loc: Sequence[str | int], body: object, *, is_missing: bool) -> str:
    """Return the path of the field in the body, without pydantic's own steps (the names of a union's members)."""
    if not loc or loc[0] != "body":  # a query or a path parameter
        return shown_name(str(loc[-1])) if loc else ""
    path, value = "", body
    for number, step in enumerate(loc[1:], start=2):
        is_last_of_missing = is_missing and number == len(loc)
        if isinstance(step, int) and isinstance(value, list) and 0 <= step < len(value):
            path, value = f"{path}[{step}]", value[step]
        elif isinstance(value, dict) and step in value:
            path, value = _joined(path, str(step)), value[step]
        elif is_last_of_missing:
            path = _joined(path, str(step))
    return path


def _joined(path: str, name: str) -> str:
    return f"{path}.{shown_name(name)}" if path else shown_name(name)


def _answer(error: ApiError) -> JSONResponse:
    return JSONResponse(error.envelope(), error.status, headers=error.headers)


class BrokenAnswerError(Exception):
    """An answer that failed after it had begun. The server closes the connection, so the client sees the failure."""


class Failures:
    """Middleware that answers 500 for any other exception.

    The log says where it was raised; neither the log nor the answer says what was asked.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on one request. Raises BrokenAnswerError if it fails after its answer has begun."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        has_begun = False

        async def watched_send(message: Message) -> None:
            nonlocal has_begun
            has_begun = has_begun or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, watched_send)
        except Exception as error:  # noqa: BLE001 - its text may quote the request, so it must not go further up
            request_id = scope.get("state", {}).get("request_id")
            route = getattr(scope.get("route"), "path", None)
            _log.error(
                failure_event("request failed", error, request_id=request_id, method=scope["method"], route=route)
            )
            if has_begun:
                raise BrokenAnswerError(f"request {request_id} failed after its answer had begun") from None
            message = f"The server failed at this request. Its log says more under the request id {request_id}."
            await refuse(send, ApiError(500, message, type="server_error"))
