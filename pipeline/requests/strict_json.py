"""JSON parsed strictly: ambiguous input is an error that says what is wrong with it; and where a value ends in a text.

Python's own parser accepts NaN and infinities, the last of two equal keys, half a surrogate pair, and any nesting that
its stack can hold. RFC 8259, 4: names should be unique; 8.2: the behaviour of unpaired surrogates is unpredictable.
"""

import json
import math
import re
from collections.abc import Mapping
from typing import Any, NoReturn

from pipeline.errors import FieldError, shown_name

# Possessive, and the closing quote may be missing: no byte is looked at twice.
_BRACKET_OR_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{]|[\]}]', re.DOTALL)
_MAX_NAME = 64  # bytes of a field's name that are shown
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_SIGN = re.compile(r'["\[\]{}]')
_IN_STRING = re.compile(r'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)


class JsonError(ValueError):
    """Bytes that are not one strict JSON object. The message has none of their text but the name of a field, `name`.

    Where only the parser's hooks know what is wrong, the message has a place for what holds it: "{what}".
    """

    def __init__(self, message: str, name: str | None = None) -> None:
        super().__init__(message)
        self.name = name


def parse_object(data: bytes, what: str, max_depth: int | None = None) -> dict[str, Any]:
    """Return the object that bytes hold; `what` begins a message ("The body"). Raises JsonError or RecursionError."""
    if max_depth is not None:
        _check_depth(data, what, max_depth)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise JsonError(f"{what} is not UTF-8: byte {error.start} begins no character.") from None
    try:
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        raise JsonError(f"{what} is not JSON at line {error.lineno}, column {error.colno}.") from None
    except JsonError as error:
        raise JsonError(str(error).replace("{what}", what), error.name) from None
    except ValueError:  # Python reads no integer of more than 4,300 digits
        raise JsonError(f"{what} has a number with too many digits.") from None
    if not isinstance(value, dict):
        raise JsonError(f"{what} must be a JSON object.")
    if _SURROGATE_ESCAPE.search(data):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise JsonError(f"{what} has half of a surrogate pair (\\ud800 to \\udfff).") from None
    return value


def _check_depth(data: bytes, what: str, max_depth: int) -> None:
    if data.count(b"[") + data.count(b"{") <= max_depth:
        return
    depth, newest = 0, b""  # the newest string of the outermost object: its field's name, where a bracket follows
    for match in _BRACKET_OR_STRING.finditer(data):
        first = match[0][:1]
        if first in b"[{":
            depth += 1
            if depth > max_depth:
                raise _too_deep(newest, what, max_depth)
        elif first in b"]}":
            depth -= 1
        elif depth == 1:
            newest = match[0]


def _too_deep(quoted_name: bytes, what: str, max_depth: int) -> JsonError:
    name = shown_name(quoted_name.strip(b'"').decode("utf-8", "replace"), _MAX_NAME)
    if not name:
        return JsonError(f"{what} is nested deeper than {max_depth} levels.")
    said = f"{what[:1].lower()}{what[1:]} is nested deeper than {max_depth} levels here"
    remedy = "use fewer levels; a JSON Schema may name its inner parts in $defs"
    return JsonError(f"{name}: {said}; {remedy}", name)


def _refuse_constant(name: str) -> NoReturn:
    raise JsonError(f"{name} is not JSON; a number must be finite.")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise JsonError("{what} has a number that is too large for a float.")
    return number


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        shown = twice if twice.isprintable() and len(twice) <= _MAX_NAME else None
        raise JsonError("{what} has the same key twice in one object.", shown)
    return values


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


class JsonEnd:
    """The end of an object or array in a text, which may grow between two questions, and change no more.

    The end is that of its last bracket. What stands between the brackets is not checked.
    """

    def __init__(self, start: int) -> None:
        self._position, self._depth, self._is_string = start, 0, False
        self._end: int | None = None

    def of(self, text: str) -> int | None:
        """Return the index behind the object or array; None while it has no end."""
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
        return json.loads(text, parse_constant=_refuse_number, parse_float=_finite_number)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _finite_number(number: str) -> float:
    value = float(number)
    return value if math.isfinite(value) else _refuse_number(number[:80])


def _refuse_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number that JSON can say")
