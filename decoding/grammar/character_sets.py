"""Escapes and sets of characters in Rust's regular expressions: which character it is, or whether it is one of several.

"Several" is said only where it is sure. Of the classes that have names, two general categories have one character, and
some properties of grapheme clusters, words and sentences do.
"""

import re
from typing import NamedTuple

_HEX = r"x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|[xuU]\{[0-9A-Fa-f]+\}"
_ESCAPE = re.compile(rf"\\(?:(?P<hex>{_HEX})|[pP](?P<name>\{{[^}}]*(?:\}}|\Z)|.)?|.)", re.DOTALL)
_ITEM = re.compile(rf"{_ESCAPE.pattern}|\[:\^?\w+:\]|.", re.DOTALL)  # of a set
_WHITE = {"a": 7, "b": 8, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13}
_SEVERAL = "several"
_BMP = 0xFFFF  # characters above it remain, whatever a set leaves out below it
_LEFT_OUT = re.compile(r"\\[dws]|\[:\w+:\]|\\p(\w|\{[A-Za-z]{1,2}\})")  # characters above remain, if it is one of these
_KINDS = ("", "gc", "generalcategory", "sc", "script", "scx", "scriptextensions")  # of properties
_SEPARATORS = {"zl": 0x2028, "lineseparator": 0x2028, "zp": 0x2029, "paragraphseparator": 0x2029}


class Escape(NamedTuple):
    """An escaped character, or a class of characters."""

    code: int | None  # None if it is not known
    is_several: bool  # it surely stands for several characters
    end: int  # where it ends in the expression


def escape_at(expression: str, place: int) -> Escape:
    """Read what begins with a backslash."""
    found = _ESCAPE.match(expression, place)
    if found is None:  # the backslash is the last sign
        return Escape(ord("\\"), False, place + 1)
    sign = expression[place + 1]
    if found["hex"]:
        digits = found["hex"][1:].strip("{}").lstrip("0")
        return Escape(min(int(digits[:7] or "0", 16), 0x10FFFF), False, found.end())
    if sign in "pP":
        code, is_several = _named(found["name"] or "", sign == "P")
        return Escape(code, is_several, found.end())
    if sign in "dDsSwW":
        return Escape(None, True, found.end())
    return Escape(_WHITE.get(sign, ord(sign)), False, found.end())


def _named(name: str, is_negated: bool) -> tuple[int | None, bool]:
    """Return the character of a class with a name, if it is known to have one, and whether it surely has several."""
    name = re.sub(r"[^a-z0-9=:!]", "", name.lower())  # Rust ignores the rest, and "is"
    kind, _, value = name.replace(":", "=").rpartition("=")
    value = value.removeprefix("is")
    if "!" in name or (is_negated and value == "any"):
        return None, False
    if is_negated:
        return None, True
    if kind not in _KINDS:
        return None, False
    return _SEPARATORS.get(value), value not in _SEPARATORS


def end_of_set(expression: str, place: int) -> int:
    """Return the place of the bracket that ends the set which begins here."""
    depth = 0
    while place < len(expression):
        sign = expression[place]
        if sign == "\\":
            place += 1
        elif sign == "[":
            depth += 1
            place += expression.startswith("^", place + 1)
            place += expression.startswith("]", place + 1)  # the first one is a character
        elif sign == "]":
            depth -= 1
            if not depth:
                break
        place += 1
    return place


def is_several(inside: str) -> bool:
    """Return whether the inside of a set surely stands for several characters."""
    if re.search("&&|--|~~", inside):
        return False
    is_negated = inside.startswith("^")
    items = [found[0] for found in _ITEM.finditer(inside, int(is_negated))]
    return _leaves_several(items) if is_negated else _has_several(items)


def _has_several(items: list[str]) -> bool:
    codes = set()
    for number, item in enumerate(items):
        if item == "[":  # another set
            return False
        if item[:2] == "[:":
            return True
        if item[0] == "\\":
            escape = escape_at(item, 0)
            if escape.is_several:
                return True
            codes.add(escape.code)
        elif item != "-" or number in (0, len(items) - 1):  # else a range
            codes.add(ord(item))
    return len(codes - {None}) > 1


def _leaves_several(items: list[str]) -> bool:
    """Return whether several characters surely remain without these."""
    names = 0
    for item in items:
        if item == "[":
            return False
        if _LEFT_OUT.fullmatch(item):
            names += item[:2] == "\\p"
        elif item[0] == "\\":
            code = escape_at(item, 0).code
            if item[1] in "pP" or code is None or code > _BMP:
                return False
        elif item[:2] == "[:" or ord(item) > _BMP:
            return False
    return names < 2
