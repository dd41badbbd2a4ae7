"""Values as JSON has them: text, numbers, true and false, null, lists and objects."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from pipeline.errors import FieldError

_SURROGATE = re.compile("[\ud800-\udfff]")


def check_json(where: str, value: Any) -> None:
    """Raise FieldError for a value that JSON cannot say, at any depth: a template would write what Python calls it."""
    try:
        _check_json(where, value)
    except RecursionError:
        raise FieldError(where, "it is nested too deeply") from None


def _check_json(where: str, value: Any) -> None:
    match value:
        case None | bool() | int():
            return
        case str():
            if not value.isascii() and _SURROGATE.search(value):
                raise FieldError(where, "it holds half a surrogate pair, which is no character")
        case float():
            if not math.isfinite(value):
                raise FieldError(where, f"{value} is no number that JSON can say")
        case list():
            for index, each in enumerate(value):
                _check_json(f"{where}[{index}]", each)
        case Mapping():
            for name, each in value.items():
                if not isinstance(name, str):
                    raise FieldError(where, f"the name of a field is {ascii(name)[:64]}; JSON has strings only")
                _check_json(where, name)
                _check_json(f"{where}.{ascii(name)[1:-1]:.64}", each)
        case _:
            reason = f"JSON has no value of the type {type(value).__name__}; give it as a text or a number"
            raise FieldError(where, reason)
