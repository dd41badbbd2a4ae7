"""Whole numbers that came as floats: tables store them so where some rows have none, and JSON may say 2.0."""

from __future__ import annotations

import math
from typing import Any

_LARGEST = 2.0**53  # a float beyond this may stand for several integers, so it stays one


def whole(value: Any) -> Any:
    """Return the value with whole floats as integers, in lists and objects too. NaN, the gap of a table, is None."""
    if isinstance(value, list):
        return [whole(each) for each in value]
    if isinstance(value, dict):
        return {name: whole(each) for name, each in value.items()}
    if not isinstance(value, float):
        return value
    if math.isnan(value):
        return None
    return int(value) if value.is_integer() and abs(value) <= _LARGEST else value
