"""Readers of calls in a text that grows. The events do not depend on how the text is split into pieces."""

from __future__ import annotations

from collections.abc import Set
from typing import Protocol

from pipeline.text.answer_parts import Arguments, CallBegins, CallEvent, Content
from pipeline.text.tools.family import Family, after_space
from pipeline.text.tools.json_ends import JsonEnds


class CallReader(Protocol):
    """A reader of calls and of the text around them."""

    def push(self, text: str) -> list[CallEvent]:
        """Add text; return what is certain now."""

    def finish(self) -> list[CallEvent]:
        """Return the rest once no text follows."""


class FreeReader:
    """A reader of an answer that may call tools, or not.

    A call is held back until it is whole, because a text that only looks like a call, or that calls a function which
    was not offered, is content. White space around calls belongs to their format.
    """

    def __init__(self, family: Family, names: Set[str]) -> None:
        """Read calls of the functions `names`."""
        self._family, self._names = family, names
        self._text = ""  # not settled yet
        self._space = ""  # settled white space that is content if content follows
        self._has_content, self._is_behind_call = False, False
        self._is_begin = family.begins_bare  # a call may begin here without its marker
        self._ends: JsonEnds | None = None  # of the call that the text may begin with; None outside of calls

    def push(self, text: str) -> list[CallEvent]:
        """Add text; return what is certain now."""
        self._text += text
        return self._settled(is_over=False)

    def finish(self) -> list[CallEvent]:
        """Return the rest once no text follows."""
        events = self._settled(is_over=True)
        if not self._is_behind_call and self._space:
            events.append(Content(self._space))
        return events

    def _settled(self, is_over: bool) -> list[CallEvent]:
        events: list[CallEvent] = []
        while self._begin_call(events, is_over) and self._end_call(events, is_over):
            pass
        return events

    def _begin_call(self, events: list[CallEvent], is_over: bool) -> bool:
        """Settle the content before the next call; return whether the text now begins with what may be one."""
        if self._ends is not None:
            return True
        if self._is_begin:
            start = after_space(self._text)
            if start == len(self._text) and not is_over:
                return False
            if self._text.startswith("{", start):
                self._ends = JsonEnds()
                return True
            self._is_begin = False
        marker = self._family.marker
        position = self._text.find(marker)
        if position >= 0:
            self._content(events, self._text[:position])
            self._text, self._ends = self._text[position + len(marker) :], JsonEnds()
            return True
        num_held = 0 if is_over else _overlap(self._text, marker)
        settled = len(self._text) - num_held
        self._content(events, self._text[:settled])
        self._text = self._text[settled:]
        return False

    def _end_call(self, events: list[CallEvent], is_over: bool) -> bool:
        """Settle what the text begins with, a call or none; return False if more text decides."""
        assert self._ends is not None, "a call was begun"
        found = self._family.read(self._text, self._ends, is_over)
        if found is None:
            return False
        is_good = bool(found.calls) and all(call.name in self._names for call in found.calls)
        for call in found.calls if is_good else ():
            events += [CallBegins(call.name), Arguments(call.arguments)]
        if is_good:
            self._text, self._is_behind_call = self._text[found.end :], True
        elif not self._is_begin:
            self._content(events, self._family.marker)
        self._is_begin, self._ends = False, None
        return True

    def _content(self, events: list[CallEvent], text: str) -> None:
        """Add content, except white space at its end, which may yet belong to a call."""
        held = self._space + text
        shown = held.rstrip()
        if not shown:
            self._space = held
            return
        if self._is_behind_call and not self._has_content:
            shown = shown.lstrip()
        self._space = held[len(held.rstrip()) :]
        self._has_content, self._is_behind_call = True, False
        events.append(Content(shown))


class ForcedReader:
    """A reader of forced calls, which a grammar holds to their format: arguments come as they are written.

    Of a text that was cut off, the last call has the begin of its arguments.
    """

    def __init__(self, family: Family) -> None:
        self._forced = family.forced
        self._text = ""  # not settled yet
        self._ends: JsonEnds | None = None  # of the arguments at the begin of the text; None between them
        self._num_sent = 0  # characters of these arguments
        self._has_call = False

    def push(self, text: str) -> list[CallEvent]:
        """Add text; return what is certain now."""
        self._text += text
        events: list[CallEvent] = []
        while self._begin(events) and self._end(events):
            pass
        return events

    def finish(self) -> list[CallEvent]:
        """Return the rest once no text follows: the begin of a call that has no name yet is content."""
        rest, tail = self._text, self._forced.tail
        if self._ends is not None or not rest.strip():
            return []
        if self._has_call:
            rest = rest.lstrip()
        if self._has_call and (tail.startswith(rest) or rest.startswith(tail)):
            rest = rest[len(tail) :]
        return [Content(rest)] if rest.strip(" ]\n") else []

    def _begin(self, events: list[CallEvent]) -> bool:
        if self._ends is None:
            text = self._text
            if self._has_call and self._forced.tail and not text.startswith(self._forced.tail):
                return False
            head = self._forced.head.match(text, len(self._forced.tail) if self._has_call else 0)
            if head is None:
                return False
            events.append(CallBegins(head["name"]))
            self._text, self._ends, self._num_sent, self._has_call = text[head.end() :], JsonEnds(), 0, True
        return self._text != ""

    def _end(self, events: list[CallEvent]) -> bool:
        assert self._ends is not None, "arguments were begun"
        end = self._ends.of(self._text, 0)
        arguments = self._text if end is None else self._text[:end]
        if len(arguments) > self._num_sent:
            events.append(Arguments(arguments[self._num_sent :]))
            self._num_sent = len(arguments)
        if end is None:
            return False
        self._text, self._ends = self._text[end:], None
        return True


class EitherReader:
    """A reader of an answer that a grammar holds to calls, or to a form. Nothing in a text of the form is a call."""

    def __init__(self, family: Family, names: Set[str]) -> None:
        """Read calls of the functions `names`."""
        self._family, self._names, self._calls = family, names, ForcedReader(family)
        self._text = ""  # while it is not known what it begins
        self._is_call: bool | None = None

    def push(self, text: str) -> list[CallEvent]:
        """Add text; return what is certain now."""
        if self._is_call is None:
            text = self._text + text
            self._is_call = self._family.begins_call(text, self._names)
            self._text = text if self._is_call is None else ""
        if self._is_call:
            return self._calls.push(text)
        return [Content(text)] if text and self._is_call is False else []

    def finish(self) -> list[CallEvent]:
        """Return the rest once no text follows."""
        if self._is_call:
            return self._calls.finish()
        return [Content(self._text)] if self._text else []


def _overlap(text: str, marker: str) -> int:
    """Return the length of the longest end of the text with which the marker may begin."""
    longest = min(len(text), len(marker) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(marker[:size])), 0)
