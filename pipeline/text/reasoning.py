"""Reasoning: what a model thinks before it answers, between two tags, and how it is told from the answer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal, get_args

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
