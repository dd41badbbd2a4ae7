"""Parts of an answer, as its text is read piece by piece, and the tags around what a model thinks before it answers."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, get_args

ReasoningName = Literal["auto", "none", "think", "mistral"]


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


def shown_call(id: str, name: str, arguments: str) -> dict[str, Any]:
    """Return a call as the message of an assistant shows it."""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


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
