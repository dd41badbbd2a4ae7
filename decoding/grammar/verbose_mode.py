"""Rust's regular expressions with the flag x, in which white space and comments mean nothing, written without it."""

import re

_HAS_FLAG = re.compile(r"\(\?[a-zA-Z]*x")
_IGNORED = re.compile(r"(?:[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]|#[^\n]*)*")
_NAME = re.compile(r"\?P?<[^>]*(?:>|\Z)")
_FLAGS = re.compile(r"\?([a-zA-Z]{0,20})(-[a-zA-Z]{0,20})?([:)])")


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
            self.open()
        elif sign == ")" and not self.depth and self.outside:
            self.is_verbose = self.outside.pop()

    def keep(self, size: int) -> None:
        self.kept.append(self.expression[self.place : self.place + size])
        self.place += size

    def skip(self) -> None:
        ignored = _IGNORED.match(self.expression, self.place)
        if self.is_verbose and ignored is not None:
            self.place = ignored.end()

    def open(self) -> None:
        """Read what is behind the bracket of a group: its name or its flags; flags can also stand without a group."""
        self.skip()
        flags = _FLAGS.match(self.expression, self.place)
        if flags is None or flags[3] == ":":
            self.outside.append(self.is_verbose)
        if flags is not None:
            self.is_verbose = (self.is_verbose or "x" in flags[1]) and "x" not in (flags[2] or "")
        found = flags or _NAME.match(self.expression, self.place)
        if found is not None:
            self.keep(found.end() - self.place)
