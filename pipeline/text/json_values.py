"""JSON: the values that it can say, and where one ends in a text that is still growing."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, NoReturn

from pipeline.errors import FieldError

_SURROGATE = re.compile("[\ud800-\udfff]")
_SIGN = re.compile(r'["\[\]{}]')
_IN_STRING = re.compile(r'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)


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


class JsonEnds:
    """The ends of the objects and arrays of one text. The text may grow between two questions, and change no more."""

    def __init__(self) -> None:
        self._scans: dict[int, _Scan] = {}

    def of(self, text: str, start: int) -> int | None:
        """Return the index behind the object or array that begins at `start`; None while it has no end.

        The end is that of its last bracket. What stands between the brackets is not checked.
        """
        return self._scans.setdefault(start, _Scan(start)).advanced(text)


class _Scan:
    def __init__(self, start: int) -> None:
        self._position, self._depth, self._is_string = start, 0, False
        self._end: int | None = None

    def advanced(self, text: str) -> int | None:
        while self._end is None:
            if self._is_string:
                rest = _IN_STRING.match(text, self._position)
                assert rest is not None, "the pattern matches the empty text, too"
                self._position = rest.end()
                if not text.startswith('"', self._position):  # or a backslash whose character has not come
                    return None
                self._position, self._is_string = self._position + 1, False
                continue
            sign = _SIGN.search(text, self._position)
            if sign is None:
                self._position = len(text)
                return None
            self._position = sign.end()
            if sign[0] == '"':
                self._is_string = True
            else:
                self._depth += 1 if sign[0] in "[{" else -1
                if self._depth <= 0:
                    self._end = self._position
        return self._end


def parsed(text: str) -> Any:
    """Return what JSON text says. Raises ValueError for any other text, and for numbers that Python cannot hold."""
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _finite(number: str) -> float:
    value = float(number)
    return value if math.isfinite(value) else _refuse(number[:80])


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number that JSON can say")
