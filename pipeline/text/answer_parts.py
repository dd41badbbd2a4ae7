"""Parts of an answer: what it consists of, as its text is read piece by piece."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Reasoning:
    """A piece of what the model thought."""

    text: str


@dataclass(frozen=True)
class Content:
    """A piece of the answer's own text."""

    text: str


@dataclass(frozen=True)
class CallBegins:
    """The begin of the next call."""

    name: str


@dataclass(frozen=True)
class Arguments:
    """A piece of the arguments of the newest call, JSON text of an object."""

    text: str


CallEvent = Content | CallBegins | Arguments
Event = Reasoning | CallEvent


@dataclass
class ToolCall:
    """A call of a function. If the answer was cut off, the arguments are the begin of JSON text."""

    name: str
    arguments: str = ""


@dataclass
class Answer:
    """An answer in its parts; None for a part that it does not have."""

    reasoning: str | None = None
    content: str | None = None
    calls: list[ToolCall] = field(default_factory=list)

    def add(self, events: Iterable[Event]) -> None:
        """Add what was read next."""
        for event in events:
            match event:
                case Reasoning(text):
                    self.reasoning = (self.reasoning or "") + text
                case Content(text):
                    self.content = (self.content or "") + text
                case CallBegins(name):
                    self.calls.append(ToolCall(name))
                case Arguments(text):
                    self.calls[-1].arguments += text
