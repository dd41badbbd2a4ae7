"""Fixed text of regular expressions: how many bytes of a text may follow from an expression with nothing to choose.

Where the text can go on in one way only, llguidance reads on to the next choice: at every step, in a fifth of a
microsecond for each byte. Repetitions write out much from few characters: `(a{300}){300}` has 90,000 such bytes.

The number is an upper bound, but for some bytes that the characters of a choice may have in common. What may be left
out counts as left out, since no text can be foreseen further than the shortest one that is allowed. Alternatives with
the same beginning, or with one that is not known, are no choice.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from decoding.grammar.character_sets import end_of_set, escape_at, is_several, without_ignored

_MUCH = 16  # bytes: fewer cost little, in whatever many ways they can be read
_MANY = -1  # the first character is one of several
_MOST = 10**12  # a larger number is not told from it
_DEEPEST = 1000  # llguidance refuses expressions with more than 250 groups in each other
_REPEATED = re.compile(r"[*+?]|\{([^{}]*)\}")
_COUNTS = re.compile(r"([0-9]*)(,?)([0-9]*)")
_GROUP = re.compile(r"\((?:\?(?:P?<[^>]*(?:>|\Z)|[a-zA-Z-]*([:)])))?")


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
            None if self.through is None else min(least * self.through, _MOST),
            min(self.begin + more, _MOST),
            min(self.end + more, _MOST),
            self.longest if most == 1 else min(max(self.longest, two), _MOST),
            self.first if least else None,
        )


_NOTHING = _Text(0, 0, 0, 0)
_ONE = _Text(4, 4, 4, 4)  # a character that is not known
_CHOICE = _Text(None, 0, 3, 3, _MANY)  # the first byte of a character may leave no choice of the others
_SHORT = (8, 9, 10, 12, 13, 34, 92)  # JSON writes these as a backslash and a sign


def _literal(code: int) -> _Text:
    size = 2 if code in _SHORT else 6 if code < 32 else len(chr(code).encode(errors="replace"))
    return _Text(size, size, size, size, ord(chr(code).lower()[0]))  # some flags make the cases of a letter one


def _either(parts: list[_Text]) -> _Text:
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
    has_choice: bool  # in every text; else the text behind can be foreseen through it
    source: str  # the expression, without white space and comments that mean nothing
    places: tuple[tuple[int, int], ...]  # in it, of repeated groups that have much more than they are long

    def groups(self) -> Iterator[str]:
        """Yield those groups. They lie in each other, so each is copied only when it is asked for."""
        for start, end in self.places:
            yield self.source[start:end]


class _Open:
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
    pattern = without_ignored(pattern)
    place, groups = 0, [_Open(0)]
    places: list[tuple[int, int]] = []
    while place < len(pattern):
        sign, group = pattern[place], groups[-1]
        if (found := _REPEATED.match(pattern, place)) and (counts := _counts(found)):
            group.last = group.last.repeated(*counts)
            place = found.end()
            if pattern.startswith("?", place):  # as few as possible: the texts are the same
                place += 1
            start = group.last_start
            if pattern[start] == "(" and has_more(group.last.longest, place - start):
                if places and places[-1][0] == start:  # the same group, repeated again
                    places.pop()
                places.append((start, place))
        elif sign == "(":
            found = _GROUP.match(pattern, place)
            assert found is not None, "a bracket is there"
            if found[1] != ")" and len(groups) < _DEEPEST:  # else flags without a group
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
    text = groups[0].close()
    return FixedText(text.longest, text.through is None, pattern, tuple(places))


def has_more(longest: int, length: int) -> bool:
    """Return whether an expression of such a length has much more fixed text than it is long."""
    return longest - length >= _MUCH


def _counts(found: re.Match[str]) -> tuple[int, int | None] | None:
    """Return how often a quantifier repeats, at least and at most; None if it is none."""
    if found[1] is None:
        return int(found[0] == "+"), 1 if found[0] == "?" else None
    counts = _COUNTS.fullmatch("".join(found[1].split()))
    if counts is None:
        return None
    least, most = (int(digits.lstrip("0")[:12] or 0) for digits in (counts[1], counts[3]))
    return least, most if counts[3] else None if counts[2] else least


def _atom(pattern: str, place: int) -> tuple[_Text, int]:
    """Return the text of one character, or of a set of them, and where it ends."""
    sign = pattern[place]
    if sign == "[":
        end = end_of_set(pattern, place)
        return _CHOICE if is_several(pattern[place + 1 : end]) else _ONE, end + 1
    if sign in "^$":
        return _NOTHING, place + 1
    if sign == ".":
        return _CHOICE, place + 1
    if sign != "\\":
        return _literal(ord(sign)), place + 1
    if pattern[place + 1 : place + 2] in tuple("AzbB"):
        return _NOTHING, place + 2
    escape = escape_at(pattern, place)
    text = _CHOICE if escape.is_several else _ONE if escape.code is None else _literal(escape.code)
    return text, escape.end
