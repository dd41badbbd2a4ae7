"""What becomes of an exception: an answer in the OpenAI form: what to change, or that we failed, and no more."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from endpoint.http.errors import ApiError
from endpoint.http.refusal import refuse
from endpoint.http.shown_name import shown_name
from pipeline.failure_log import failure_event

_log = logging.getLogger(__name__)
_MESSAGES = {
    400: "The request cannot be read.",
    404: "There is no such path here.",
    405: "This path does not take this method.",
}
_CODES = {404: "unknown_url", 405: "method_not_allowed"}
_FIELD_CODES = {"missing": "missing_required_parameter", "extra_forbidden": "unknown_parameter"}


# Of pydantic's kinds of errors (https://docs.pydantic.dev/latest/errors/validation_errors/), in our words.
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
    """Answer in the OpenAI form what the application raises on purpose; `Failures` answers the rest."""

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
    """What pydantic found, as a 400 for its first field: `param` is the path of the field, as in messages[0].role.

    The message has the field and what it must be, and nothing that the client sent but the names of its fields.
    """
    places = [(_path(error["loc"], body, is_missing=error["type"] == "missing"), error) for error in errors]
    path = places[0][0]
    said: list[str] = []
    for place, error in places:
        what = _said(error)
        if place == path and what not in said:
            said.append(what)
    code = _FIELD_CODES.get(places[0][1]["type"], "invalid_value")
    where = path or "the body"
    return ApiError(400, f"{where}: {'; or: '.join(said[:4])}", param=path or None, code=code)


def _said(error: Mapping[str, Any]) -> str:
    words = _WORDS.get(error["type"])
    if words is None:
        return str(error["msg"]).removeprefix("Value error, ")
    limits = error.get("ctx", {}).items()  # 2.0 is shown as 2
    return words.format(**{k: int(v) if isinstance(v, float) and v.is_integer() else v for k, v in limits})


def _path(loc: Sequence[str | int], body: object, *, is_missing: bool) -> str:
    """The way to the field in the body itself, without pydantic's own steps (the names of a union's members)."""
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
    """An answer that had begun cannot be ended well: the server closes the connection, so nobody takes it for whole."""


class Failures:
    """Answers 500 for what nobody else answers. The log says where it came from; neither says what was asked."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on one request; BrokenAnswerError if it fails when its answer has begun."""
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
        except Exception as error:  # noqa: BLE001 - nobody above may see its text, which can quote the request
            request_id = scope.get("state", {}).get("request_id")
            route = getattr(scope.get("route"), "path", None)
            _log.error(
                failure_event("request failed", error, request_id=request_id, method=scope["method"], route=route)
            )
            if has_begun:
                raise BrokenAnswerError(f"request {request_id} failed after its answer had begun") from None
            message = f"The server failed at this request. Its log says more under the request id {request_id}."
            await refuse(send, ApiError(500, message, type="server_error"))
