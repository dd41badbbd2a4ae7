"""JsonEnds: where a JSON value ends in a text that is still growing. Each character is looked at once."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

_SIGN = re.compile(r'["\[\]{}]')
_IN_STRING = re.compile(r'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)


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
