"""Family: how the models of one family write calls. Each family is a file of this folder."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, ClassVar

from pipeline.text.answer_parts import ToolCall
from pipeline.text.tools.asked import Tool
from pipeline.text.tools.json_ends import JsonEnds, parsed

_NO_SPACE = re.compile(r"\S")
A_NAME = '"(?P<name>[a-zA-Z0-9_-]{1,64})"'
Literal = Callable[[str], str]  # returns a text as Lark, which may be a special token


@dataclass(frozen=True)
class Found:
    """Calls that were read, and where they end in the text. Without a call it was none, and the text is content."""

    calls: tuple[ToolCall, ...]
    end: int


BROKEN = Found((), 0)


@dataclass(frozen=True)
class Forced:
    """How forced calls are written, exactly, so that they can be read while they grow.

    `head` matches from the begin of a call up to its arguments, and has the name as its group "name". `tail` follows
    the arguments.
    """

    head: re.Pattern[str]
    tail: str


class Family(ABC):
    """The format of one family. All methods are pure."""

    name: ClassVar[str]
    marker: ClassVar[str]  # the text that calls begin with
    begins_bare: ClassVar[bool] = False  # whether an answer may begin with a call without the marker
    special: ClassVar[tuple[str, ...]]  # tokens of the format that some tokenizers count as special
    forced: Forced
    separator: ClassVar[str | None] = None  # between a call and the next one's marker; None: there is one marker alone

    @abstractmethod
    def read(self, text: str, ends: JsonEnds, is_over: bool) -> Found | None:
        """Return what calls the text begins with, which follows the marker; None if more text decides.

        `ends` are those of this text. If `is_over`, no text follows, and the answer is not None.
        """

    @abstractmethod
    def call(self, tool: Tool, arguments: str, literal: Literal) -> str:
        """Return what follows the marker of a call, as Lark; `arguments` is the rule of its arguments."""

    def group(self, call: str, several: bool, literal: Literal) -> str:
        """Return what follows one marker, as Lark, where `call` is the rule of a call."""
        return call

    def call_beside(self, tool: Tool, arguments: str, literal: Literal, space: str) -> str:
        """Return `call` where an answer may be JSON instead, with `space` as Lark between the tokens of both."""
        return self.call(tool, arguments, literal)

    def begins_call(self, text: str, names: Set[str]) -> bool | None:
        """Return whether an answer that is calls of these functions, or of another form, is calls; None if more text
        decides."""
        return True if text.startswith(self.marker) else None if self.marker.startswith(text) else False

    def beginnings(self, names: Set[str], is_json: bool) -> list[str]:
        """Return what a text of another form may not begin with, as it would be taken for a call of these functions."""
        return [self.marker]

    def new_id(self, seed: str) -> str:
        """Return the id of a call: the same for the same seed."""
        return f"call_{blake2b(seed.encode(), digest_size=12).hexdigest()}"


def call_in(value: Any, arguments_names: Sequence[str]) -> ToolCall | None:
    """Return the call that an object of JSON describes; None if it describes none.

    Some models write a type beside the name, name and arguments in `function` as the API has them, and arguments as
    JSON text of an object.
    """
    if not isinstance(value, dict) or value.get("type", "function") != "function":
        return None
    outside = set(value) - {"function"}
    if isinstance(value.get("function"), dict) and outside <= {"type", "id"}:
        value = value["function"]
    given = [name for name in arguments_names if name in value]
    if not isinstance(value.get("name"), str) or len(given) != 1 or set(value) - {"name", "id", "type", *given}:
        return None
    arguments = value[given[0]]
    if isinstance(arguments, str):
        try:
            arguments = parsed(arguments)
        except ValueError:
            return None
    return ToolCall(value["name"], arguments_text(arguments)) if isinstance(arguments, dict) else None


def arguments_text(arguments: Any) -> str:
    """Return arguments as JSON text, as chat templates write it."""
    return json.dumps(arguments, ensure_ascii=False)


def value_at(text: str, start: int, ends: JsonEnds) -> tuple[Any, int] | None:
    """Return the object or array at `start` of the text and where it ends; None while it has no end.

    The value is None if it is no JSON.
    """
    end = ends.of(text, start)
    if end is None:
        return None
    try:
        return parsed(text[start:end]), end
    except ValueError:
        return None, end


def after_space(text: str, start: int = 0) -> int:
    """Return the index of the first character from `start` on that is no white space."""
    found = _NO_SPACE.search(text, start)
    return len(text) if found is None else found.start()


def is_begun(text: str, start: int, literal: str) -> bool:
    """Tell whether the text ends, from `start` on, within the literal, so that more text decides."""
    rest = text[start:]
    return len(rest) < len(literal) and literal.startswith(rest)
