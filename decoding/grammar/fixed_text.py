"""Fixed text of regular expressions: how many bytes of a text may follow from an expression with nothing to choose.

Where the text can go on in one way only, llguidance reads on to the next choice: at every step, in a fifth of a
microsecond for each byte. Repetitions write out much from few characters: `(a{300}){300}` has 90,000 such bytes.

The number is an upper bound. What may be left out counts as left out, since no text can be foreseen further than the
shortest one that is allowed. Alternatives with the same beginning, or with one that is not known, are no choice.
"""

import re
from typing import NamedTuple

_MUCH = 16  # bytes: fewer cost little, in whatever many ways they can be read
_MANY = -1  # the first character is one of several
_HEX = re.compile(r"x\{[0-9A-Fa-f]+\}|x[0-9A-Fa-f]{2}|u\{[0-9A-Fa-f]+\}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}")
_QUANTIFIER = re.compile(r"[*+?]|\{(\d*)(,?)(\d*)\}")
_GROUP = re.compile(r"\(\?(?:P?<\w+>|[a-zA-Z-]*(:|\)))|\(")
_NAMED = re.compile(r"[pP](\{[^}]*\}|.)?")
_IS_VERBOSE = re.compile(r"\(\?[a-wyzA-Z]*x")
_IGNORED = re.compile(r"(\s|#[^\n]*)+")
_SEVERAL = re.compile(r"\\[dws]|\[:\w")  # in a class


class _Text(NamedTuple):
    """The fixed bytes of a part: from end to end (None if there is a choice), at its beginning, at its end, in it."""

    through: int | None
    begin: int
    end: int
    longest: int
    first: int | None = None  # its first character; None if that is not known, and perhaps the next part's

    def before(self, other: "_Text") -> "_Text":
        """Return this part and then another one."""
        if self is _NOTHING:
            return other
        is_whole = self.through is not None and other.through is not None
        return _Text(
            (self.through or 0) + (other.through or 0) if is_whole else None,
            self.begin if self.through is None else max(self.begin, self.through + other.begin),
            other.end if other.through is None else max(other.end, other.through + self.end),
            max(self.longest, other.longest, self.end + other.begin),
            None if self.through == 0 else self.first,
        )

    def repeated(self, least: int, most: int | None) -> "_Text":
        """Return this part as often; `most` is None where there is no end to it."""
        if most == 0:
            return _NOTHING
        more = (max(least, 1) - 1) * (self.through or 0)  # of the repetitions but one
        two = self.end + self.begin + max(0, more - (self.through or 0))
        return _Text(
            None if self.through is None else least * self.through,
            self.begin + more,
            self.end + more,
            self.longest if most == 1 else max(self.longest, two),
            self.first if least else None,
        )


_NOTHING = _Text(0, 0, 0, 0)
_CHOICE = _Text(None, 0, 3, 3, _MANY)  # the first byte of a character may leave no choice of the others


def _literal(code: int) -> _Text:
    # JSON writes control characters, quotes and backslashes longer.
    size = 6 if code < 32 else 2 if code in (34, 92) else len(chr(code).encode(errors="replace"))
    return _Text(size, size, size, size, ord(chr(code).lower()[0]))  # some flags make the cases of a letter one


def _either(parts: list[_Text]) -> _Text:
    """Return the text of alternatives."""
    if len(parts) == 1:
        return parts[0]
    firsts = {part.first for part in parts}
    end, longest = max(part.end for part in parts), max(part.longest for part in parts)
    if _MANY in firsts or len(firsts - {None}) > 1:
        return _Text(None, 0, end, longest, _MANY)
    throughs = [part.through for part in parts if part.through is not None]
    through = min(throughs) if len(throughs) == len(parts) else None
    return _Text(through, min(part.begin for part in parts), end, longest, firsts.pop() if len(firsts) == 1 else None)


class FixedText(NamedTuple):
    """The fixed text of an expression."""

    longest: int  # bytes: an upper bound
    groups: tuple[str, ...]  # repeated groups of it that have much more than they are long; they may be repeated again


class _Open:
    """A group that is being read."""

    def __init__(self, start: int) -> None:
        self.start, self.last_start = start, start
        self.others: list[_Text] = []  # alternatives before the present one
        self.before, self.last = _NOTHING, _NOTHING  # in the present one; a quantifier repeats the last part

    def add(self, part: _Text, start: int) -> None:
        self.before, self.last, self.last_start = self.before.before(self.last), part, start

    def close(self) -> _Text:
        return _either([*self.others, self.before.before(self.last)])


def fixed_text(pattern: str) -> FixedText:
    """Return the fixed text of an expression.

    It reads Rust's syntax, and anything else somehow: whether an expression is valid is for llguidance to say.
    """
    place, groups, is_verbose = 0, [_Open(0)], bool(_IS_VERBOSE.search(pattern))
    large = []
    while place < len(pattern):
        sign, group = pattern[place], groups[-1]
        if is_verbose and (ignored := _IGNORED.match(pattern, place)):
            place = ignored.end()
        elif found := _QUANTIFIER.match(pattern, place):
            group.last = group.last.repeated(*_bounds(found))
            place = found.end()
            if pattern[place : place + 1] == "?":  # as few as possible: the texts are the same
                place += 1
            source = pattern[group.last_start : place]
            if source[0] == "(" and has_more(group.last.longest, source):
                large.append(source)
        elif sign == "(":
            found = _GROUP.match(pattern, place) or re.compile(r"\(").match(pattern, place)
            assert found is not None, "a bracket is there"
            if found[1] != ")":  # else flags without a group
                groups.append(_Open(place))
            place = found.end()
        elif sign == ")":
            if len(groups) > 1:
                groups.pop()
                groups[-1].add(group.close(), group.start)
            place += 1
        elif sign == "|":
            group.others.append(group.before.before(group.last))
            group.before, group.last, group.last_start = _NOTHING, _NOTHING, place
            place += 1
        else:
            start = place
            part, place = _atom(pattern, start)
            group.add(part, start)
    while len(groups) > 1:
        group = groups.pop()
        groups[-1].add(group.close(), group.start)
    return FixedText(groups[0].close().longest, tuple(large))


def has_more(longest: int, source: str) -> bool:
    """Return whether an expression has much more fixed text than it is long."""
    return longest - len(source) >= _MUCH


def _bounds(found: re.Match[str]) -> tuple[int, int | None]:
    """Return how often a quantifier repeats, at least and at most."""
    if found[0] in ("*", "+", "?"):
        return int(found[0] == "+"), 1 if found[0] == "?" else None
    least = int(found[1][:12] or 0)
    return least, int(found[3][:12]) if found[3] else None if found[2] else least


def _atom(pattern: str, place: int) -> tuple[_Text, int]:
    """Return the text of one character, or of a set of them, and where it ends."""
    sign = pattern[place]
    if sign == "[":
        return _set(pattern, place)
    if sign in "^$":
        return _NOTHING, place + 1
    if sign == ".":
        return _CHOICE, place + 1
    if sign != "\\" or place + 1 == len(pattern):
        return _literal(ord(sign)), place + 1
    escaped = pattern[place + 1]
    if found := _HEX.match(pattern, place + 1):
        code = int(found[0].strip("xuU{}")[:7], 16)
        return _literal(min(code, 0x10FFFF)), found.end()
    if found := _NAMED.match(pattern, place + 1):
        return _CHOICE, found.end()
    if escaped in "dDsSwW":
        return _CHOICE, place + 2
    if escaped in "AzbB":
        return _NOTHING, place + 2
    return _literal(ord(escaped)), place + 2


def _set(pattern: str, place: int) -> tuple[_Text, int]:
    """Return the text of a set in brackets: a choice where it surely has several characters, else a long character."""
    end, depth = place, 0
    while end < len(pattern):
        if pattern[end] == "\\":
            end += 1
        elif pattern[end] == "[":
            depth += 1
            if pattern[end + 1 : end + 2] == "^":
                end += 1
            if pattern[end + 1 : end + 2] == "]":  # the first one is a character
                end += 1
        elif pattern[end] == "]":
            depth -= 1
            if not depth:
                break
        end += 1
    inside = pattern[place + 1 : end]
    return (_CHOICE if _has_several(inside) else _Text(4, 4, 4, 4)), end + 1


def _has_several(inside: str) -> bool:
    """Return whether the inside of a set surely stands for more than one character."""
    if re.search(r"&&|--|~~|\\[DWSPpxuU]|\[:?\^|^\^.*[^\x00-\x7f]", inside, re.DOTALL):
        return False
    if inside.startswith("^"):  # of ASCII some at most
        return True
    if _SEVERAL.search(inside):
        return True
    return len(set(re.sub(r"\\(.)", r"\1", inside, flags=re.DOTALL)) - {"-"}) > 1
