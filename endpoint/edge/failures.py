"""Failures: how an exception becomes an answer in the OpenAI form, which names the wrong field or says no more."""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from endpoint.http.errors import ApiError, field_error, wrong
from pipeline.errors import FieldError, shown_name

_MESSAGES = {
    400: "The request cannot be read.",
    404: "There is no such path here.",
    405: "This path does not take this method.",
}
_CODES = {404: "unknown_url", 405: "method_not_allowed"}


def install_handlers(app: FastAPI) -> None:
    """Install the handler of what the application raises on purpose; `endpoint.edge.install.Edge` answers the rest."""
    for kind in (ApiError, FieldError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, _answer)


async def _answer(request: Request, error: Exception) -> JSONResponse:
    match error:
        case FieldError():
            error = field_error(error)
        case RequestValidationError():
            first = error.errors()[0]  # of a query, as in ?limit=0; `body_of` reads bodies
            error = wrong(shown_name(str(first["loc"][-1])), f"{first['msg'][:1].lower()}{first['msg'][1:]}")
        case HTTPException(status_code=status):
            message = _MESSAGES.get(status, "The request cannot be answered.")
            error = ApiError(status, message, code=_CODES.get(status), headers=error.headers)
    assert isinstance(error, ApiError)
    return JSONResponse(error.envelope(), error.status, headers=error.headers)


class BrokenAnswerError(Exception):
    """An answer that failed after it had begun. The server closes the connection, so the client sees the failure."""
