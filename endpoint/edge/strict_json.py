"""JSON bodies, parsed strictly: ambiguous input is an error that says what is wrong with it.

Python's own parser accepts NaN and infinities, the last of two equal keys, half a surrogate pair, and any nesting that
its stack can hold. RFC 8259, 4: names should be unique; 8.2: the behaviour of unpaired surrogates is unpredictable.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

from starlette.types import Scope

from endpoint.http.errors import ApiError, shown_name
from endpoint.http.limits import header

# Possessive, and the closing quote may be missing: no byte is looked at twice.
_BRACKET_OR_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{]|[\]}]', re.DOTALL)
_MAX_NAME = 64  # bytes of a field's name that are shown
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")


def check_json(scope: Scope, body: bytes, max_depth: int) -> None:
    """Raise ApiError for a body that is not declared as JSON (415), or is not one strict JSON object (400)."""
    content_type = (header(scope, b"content-type") or b"").decode("latin-1")
    essence, _, parameters = content_type.partition(";")
    charset = parameters.strip().lower().replace('"', "")
    if essence.strip().lower() != "application/json" or charset not in ("", "charset=utf-8"):
        raise ApiError(415, "Send the body with the header Content-Type: application/json.")
    parse_json(body, max_depth)


def parse_json(body: bytes, max_depth: int) -> dict[str, Any]:
    """Return the object that a body holds. Raises ApiError (400), without any text of the body, if it holds none."""
    _check_depth(body, max_depth)
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ApiError(
            400, f"The body is not UTF-8: byte {error.start} begins no character.", code="invalid_json"
        ) from None
    try:
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise ApiError(400, f"The body is not JSON at {place}.", code="invalid_json") from None
    except ValueError:  # Python reads no integer of more than 4,300 digits
        raise ApiError(400, "The body has a number with too many digits.", code="invalid_json") from None
    if not isinstance(value, dict):
        raise ApiError(400, "The body must be a JSON object.", code="invalid_json")
    if _SURROGATE_ESCAPE.search(body):
        _check_surrogates(value)
    return value


def _check_depth(body: bytes, max_depth: int) -> None:
    if body.count(b"[") + body.count(b"{") <= max_depth:
        return
    depth, newest = 0, b""  # the newest string of the outermost object: its field's name, where a bracket follows
    for match in _BRACKET_OR_STRING.finditer(body):
        first = match[0][:1]
        if first in b"[{":
            depth += 1
            if depth > max_depth:
                raise _too_deep(newest, max_depth)
        elif first in b"]}":
            depth -= 1
        elif depth == 1:
            newest = match[0]


def _too_deep(quoted_name: bytes, max_depth: int) -> ApiError:
    name = shown_name(quoted_name.strip(b'"').decode("utf-8", "replace"), _MAX_NAME)
    if not name:
        return ApiError(400, f"The body is nested deeper than {max_depth} levels.", code="invalid_json")
    what = f"the body is nested deeper than {max_depth} levels here"
    remedy = "use fewer levels; a JSON Schema may name its inner parts in $defs"
    return ApiError(400, f"{name}: {what}; {remedy}", param=name, code="invalid_json")


def _check_surrogates(value: dict[str, Any]) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ApiError(
            400, "The body has half of a surrogate pair (\\ud800 to \\udfff).", code="invalid_json"
        ) from None


def _refuse_constant(name: str) -> NoReturn:
    raise ApiError(400, f"{name} is not JSON; a number must be finite.", code="invalid_json")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ApiError(400, "The body has a number that is too large for a float.", code="invalid_json")
    return number


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        shown = twice if twice.isprintable() and len(twice) <= 64 else None
        raise ApiError(400, "The body has the same key twice in one object.", param=shown, code="invalid_json")
    return values
