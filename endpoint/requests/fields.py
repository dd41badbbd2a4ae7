"""What a field of a request may hold: the types that requests share, and the errors that name a field."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field

from endpoint.http.errors import ApiError

LARGEST = 2**31 - 1
_SURROGATE = re.compile("[\ud800-\udfff]")

TokenId = Annotated[int, Field(ge=0, le=LARGEST)]
Number = Annotated[float, Field(allow_inf_nan=False)]
ModelName = Annotated[str, Field(max_length=512)]


def wrong(param: str, message: str) -> ApiError:
    """The answer to a field that does not hold what it must."""
    return ApiError(400, f"{param}: {message}", param=param, code="invalid_value")


def unsupported(param: str) -> ApiError:
    """The answer to a field that this server does not know how to honour."""
    return ApiError(
        400, f"{param}: this server does not support it; leave it out", param=param, code="unsupported_parameter"
    )


def check_text(param: str, text: str) -> None:
    """Raise ApiError for what no UTF-8 can hold."""
    if not text.isascii() and _SURROGATE.search(text):
        raise wrong(param, "it holds half a surrogate pair, which is no character")
