"""Failures: how an exception becomes an answer in the OpenAI form, which names the wrong field or says no more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from endpoint.http.errors import ApiError, field_error
from pipeline.errors import FieldError, shown_name

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
    "model_type": "expected an object",
    "model_attributes_type": "expected an object",
    "dict_type": "expected an object",
    "literal_error": "expected {expected}",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "too_long": "must have at most {max_length}, got {actual_length}",
    "string_too_long": "must have at most {max_length} characters",
}


def install_handlers(app: FastAPI) -> None:
    """Install the handler of what the application raises on purpose; `endpoint.edge.install.Edge` answers the rest."""
    for kind in (ApiError, FieldError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, _answer)


async def _answer(request: Request, error: Exception) -> JSONResponse:
    match error:
        case FieldError():
            error = field_error(error)
        case RequestValidationError():
            error = invalid_field(error.errors(), error.body)
        case HTTPException(status_code=status):
            message = _MESSAGES.get(status, "The request cannot be answered.")
            error = ApiError(status, message, code=_CODES.get(status), headers=error.headers)
    assert isinstance(error, ApiError)
    return JSONResponse(error.envelope(), error.status, headers=error.headers)


def invalid_field(errors: Sequence[Mapping[str, Any]], body: object) -> ApiError:
    """Return a 400 for the first field that pydantic found wrong; `param` is its path, as in messages[0].role.

    The message says what the field must be, and nothing that the client sent except the names of its fields.
    """
    kind, first = errors[0]["type"], errors[0]
    path = _path(first["loc"], body, is_missing=kind == "missing")
    limits = first.get("ctx", {}).items()  # 2.0 is shown as 2
    shown = {name: int(v) if isinstance(v, float) and v.is_integer() else v for name, v in limits}
    if shown.get("actual_length", 0) is None:  # of an object, which pydantic stops to count
        shown["actual_length"] = "more"
    problem = _WORDS[kind].format(**shown) if kind in _WORDS else first["msg"]
    code = _FIELD_CODES.get(kind, "invalid_value")
    return ApiError(400, f"{path or 'the body'}: {problem}", param=path or None, code=code)


def _path(loc: Sequence[str | int], body: object, *, is_missing: bool) -> str:
    """Return the path of the field in the body, without pydantic's own steps (the names of a union's members)."""
    if not loc or loc[0] != "body":  # a query or a path parameter
        return shown_name(str(loc[-1])) if loc else ""
    path, value = "", body
    for number, step in enumerate(loc[1:], start=2):
        if isinstance(step, int) and isinstance(value, list) and 0 <= step < len(value):
            path, value = f"{path}[{step}]", value[step]
        elif isinstance(value, dict) and step in value:
            path, value = _joined(path, str(step)), value[step]
        elif is_missing and number == len(loc):
            path = _joined(path, str(step))
    return path


def _joined(path: str, name: str) -> str:
    return f"{path}.{shown_name(name)}" if path else shown_name(name)


class BrokenAnswerError(Exception):
    """An answer that failed after it had begun. The server closes the connection, so the client sees the failure."""
