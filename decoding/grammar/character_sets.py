"""Characters in Rust's regular expressions: which one an escape or a set is, or whether it is one of several.

"Several" is said only where it is sure. Of the classes that have names, two general categories have one character, and
some properties of grapheme clusters, words and sentences do.

With the flag x white space and comments mean nothing: `without_ignored` writes an expression without them.
"""

import re
from typing import NamedTuple

_HEX = r"x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|[xuU]\{[0-9A-Fa-f]+\}"
_ESCAPE = re.compile(rf"\\(?:(?P<hex>{_HEX})|[pP](?P<name>\{{[^}}]*(?:\}}|\Z)|.)?|.)", re.DOTALL)
_ITEM = re.compile(rf"{_ESCAPE.pattern}|\[:\^?\w+:\]|.", re.DOTALL)  # of a set
_WHITE = {"a": 7, "b": 8, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13}
_BMP = 0xFFFF  # characters above it remain, whatever a set leaves out below it
_LEFT_OUT = re.compile(r"\\[dws]|\[:\w+:\]|\\p(\w|\{[A-Za-z]{1,2}\})")  # characters above remain, if it is one of these
_KINDS = ("", "gc", "generalcategory", "sc", "script", "scx", "scriptextensions")  # of properties
_SEPARATORS = {"zl": 0x2028, "lineseparator": 0x2028, "zp": 0x2029, "paragraphseparator": 0x2029}
_HAS_FLAG = re.compile(r"\(\?[a-zA-Z]*x")
_IGNORED = re.compile(r"(?:[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]|#[^\n]*)*")
_NAME = re.compile(r"\?P?<[^>]*(?:>|\Z)")
_FLAGS = re.compile(r"\?([a-zA-Z]{0,20})(-[a-zA-Z]{0,20})?([:)])")


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


def without_ignored(expression: str) -> str:
    """Return the expression without what its flags x make mean nothing, wherever they are on."""
    if not _HAS_FLAG.search(expression):
        return expression
    reader = _Reader(expression)
    while reader.place < len(expression):
        reader.read()
    return "".join(reader.kept)


class _Reader:
    def __init__(self, expression: str) -> None:
        self.expression, self.place = expression, 0
        self.kept: list[str] = []
        self.is_verbose, self.outside = False, list[bool]()  # here, and in the groups outside
        self.depth = 0  # of sets

    def read(self) -> None:
        start = self.place
        self.skip()
        if self.place > start:
            is_repeated = not self.depth and self.kept and self.kept[-1] in ("*", "+", "?")
            if is_repeated and self.expression.startswith("?", self.place):  # it does not mean "as few as possible"
                self.kept.append("{0,1}")
                self.place += 1
            return
        sign = self.expression[self.place]
        self.keep(2 if sign == "\\" else 1)
        if sign == "[":
            self.depth += 1
            for first in ("^", "]"):  # here the latter is a character
                self.skip()
                if self.expression.startswith(first, self.place):
                    self.keep(1)
        elif sign == "]":
            self.depth = max(0, self.depth - 1)
        elif sign == "(" and not self.depth:
            self.skip()  # behind it is the group's name, or its flags, which can also stand without a group
            flags = _FLAGS.match(self.expression, self.place)
            if flags is None or flags[3] == ":":
                self.outside.append(self.is_verbose)
            if flags is not None:
                self.is_verbose = (self.is_verbose or "x" in flags[1]) and "x" not in (flags[2] or "")
            if found := flags or _NAME.match(self.expression, self.place):
                self.keep(found.end() - self.place)
        elif sign == ")" and not self.depth and self.outside:
            self.is_verbose = self.outside.pop()

    def keep(self, size: int) -> None:
        self.kept.append(self.expression[self.place : self.place + size])
        self.place += size

    def skip(self) -> None:
        ignored = _IGNORED.match(self.expression, self.place)
        if self.is_verbose and ignored is not None:
            self.place = ignored.end()
