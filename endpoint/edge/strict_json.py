"""JSON bodies, parsed strictly: ambiguous input is an error that says what is wrong with it."""

from __future__ import annotations

from starlette.types import Scope

from endpoint.http.errors import ApiError
from endpoint.http.limits import header
from pipeline.requests.strict_json import JsonError, parse_object


def check_json(scope: Scope, body: bytes, max_depth: int) -> None:
    """Raise ApiError for a body that is not declared as JSON (415), or is not one strict JSON object (400)."""
    content_type = (header(scope, b"content-type") or b"").decode("latin-1")
    essence, _, parameters = content_type.partition(";")
    charset = parameters.strip().lower().replace('"', "")
    if essence.strip().lower() != "application/json" or charset not in ("", "charset=utf-8"):
        raise ApiError(415, "Send the body with the header Content-Type: application/json.")
    try:
        parse_object(body, "The body", max_depth)
    except JsonError as error:
        raise ApiError(400, str(error), param=error.name, code="invalid_json") from None
