"""Reasoning: what a model thinks before it answers, between two tags, and how it is told from the answer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal, get_args

from pipeline.text.answer_parts import Content, Event, Reasoning

ReasoningName = Literal["auto", "none", "think", "mistral"]


class Thought(Enum):
    """The place where a prompt leaves the model: within a thought, behind one, or free to begin one."""

    OPEN = "open"
    CLOSED = "closed"
    FREE = "free"


@dataclass(frozen=True)
class ReasoningTags:
    """The tags around a thought."""

    open: str
    close: str

    def thought_of(self, prompt: str) -> Thought:
        """Return where a prompt's end leaves the model."""
        end = prompt.rstrip()
        if end.endswith(self.open):
            return Thought.OPEN
        return Thought.CLOSED if end.endswith(self.close) else Thought.FREE

    def thought_in(self, begun: str) -> Thought:
        """Return where the begin of an answer leaves the model that continues it."""
        if not begun.strip():
            return Thought.FREE
        return Thought.OPEN if self.open in begun and self.close not in begun else Thought.CLOSED


_TAGS = {"think": ReasoningTags("<think>", "</think>"), "mistral": ReasoningTags("[THINK]", "[/THINK]")}


def reasoning_tags(name: str, chat_template: str | None) -> ReasoningTags | None:
    """Return the tags of this name, or those that the template has, for "auto"; None if there are none.

    Raises ValueError for an unknown name.
    """
    if name == "auto":
        template = chat_template or ""
        return next((tags for tags in _TAGS.values() if tags.open in template and tags.close in template), None)
    if name not in get_args(ReasoningName):
        raise ValueError(f"chat.reasoning must be one of {', '.join(get_args(ReasoningName))}, got {name!r}")
    return _TAGS.get(name)


class ReasoningReader:
    """A reader that tells a thought from the answer behind it. The events do not depend on how the text is split.

    A thought stands at the begin of the text, and has no end if the text has none. White space around it belongs to
    the format.
    """

    def __init__(self, tags: ReasoningTags, thought: Thought) -> None:
        """Read what follows a prompt that leaves the model there."""
        self._tags, self._state = tags, thought
        self._text = ""  # not settled yet
        self._skips_space = thought == Thought.OPEN  # up to the first other character

    def push(self, text: str) -> list[Event]:
        """Add text; return what is certain now."""
        self._text += text
        return self._settled(is_over=False)

    def finish(self) -> list[Event]:
        """Return the rest once no text follows."""
        return self._settled(is_over=True)

    def _settled(self, is_over: bool) -> list[Event]:
        events: list[Event] = []
        if self._state == Thought.FREE and not self._begin(is_over):
            return events
        if self._state == Thought.OPEN:
            self._think(events, is_over)
        if self._state == Thought.CLOSED:
            self._skip_space()
            if self._text:
                events.append(Content(self._text))
            self._text = ""
        return events

    def _begin(self, is_over: bool) -> bool:
        """Settle whether the text begins with a thought; return False if more text decides."""
        begin, tag = self._text.lstrip(), self._tags.open
        if begin.startswith(tag):
            self._state, self._text, self._skips_space = Thought.OPEN, begin[len(tag) :], True
        elif tag.startswith(begin) and not is_over:
            return False
        else:
            self._state = Thought.CLOSED
        return True

    def _think(self, events: list[Event], is_over: bool) -> None:
        self._skip_space()
        position, tag = self._text.find(self._tags.close), self._tags.close
        if position >= 0:
            thought, self._text = self._text[:position].rstrip(), self._text[position + len(tag) :]
            self._state, self._skips_space = Thought.CLOSED, True
        else:
            held = 0 if is_over else max(size for size in range(len(tag)) if self._text.endswith(tag[:size]))
            thought = self._text[: len(self._text) - held].rstrip()
            self._text = "" if is_over else self._text[len(thought) :]
        if thought:
            events.append(Reasoning(thought))

    def _skip_space(self) -> None:
        if self._skips_space:
            self._text = self._text.lstrip()
            self._skips_space = not self._text
