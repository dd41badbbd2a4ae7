"""Readings: the forms in which a template may be given one chat, and the first of them in which it loses nothing.

A template gets the messages as they came. Templates differ in what they read, though: one writes the JSON text of a
call's arguments as it is, the next one needs the object and would quote the text twice; one reads a content as parts,
the next one joins strings. So a chat with calls, parts or rare roles is first rendered with marks in place of its
texts. If a mark is missing, or stands in what Python calls a value, other readings of the same chat are tried: those
with the fewest changes first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from pipeline.errors import FieldError
from pipeline.text.tools.history import function_of

Message = Mapping[str, Any]
_ROLES = ("system", "user", "assistant")  # those that every template is expected to write
NO_PLACE = "the chat template of this model has no place for it"
_MARK = "zqj"  # in a word that no text has


@dataclass(frozen=True)
class Reading:
    """What a template is given. Without any change it is what transformers' `apply_chat_template` gives it."""

    arguments: str = "own"  # or "objects", or "texts" (JSON text)
    swaps_contents: bool = False  # parts as one string, strings as one part, where the template loses them
    is_system: bool = False  # whether messages of a developer have the role system
    keeps_nulls: bool = False  # whether a content that is null is null, and not absent
    drops_empty: bool = False  # whether an empty list of calls is absent

    @property
    def num_changes(self) -> int:
        """How far it is from the messages as they came."""
        return sum(value != default for value, default in zip(vars(self).values(), vars(_OWN).values(), strict=True))

    def of(self, messages: Sequence[Message], swapped: frozenset[int]) -> list[dict[str, Any]]:
        """Return the messages in this reading, `swapped` with the other form of their contents."""
        return [self._message(message, index in swapped) for index, message in enumerate(messages)]

    def _message(self, message: Message, is_swapped: bool) -> dict[str, Any]:
        found = {name: each for name, each in message.items() if each is not None or self._keeps(name, message)}
        if self.is_system and found["role"] == "developer":
            found["role"] = "system"
        if self.drops_empty and found.get("tool_calls") == []:
            del found["tool_calls"]
        if found.get("tool_calls") and self.arguments != "own":
            found["tool_calls"] = [self._call(call) for call in found["tool_calls"]]
        if is_swapped:
            found["content"] = _swapped(found.get("content"))
        return found

    def _keeps(self, name: str, message: Message) -> bool:
        return self.keeps_nulls and name == "content" and bool(message.get("tool_calls"))

    def _call(self, call: Message) -> dict[str, Any]:
        arguments = function_of(call).get("arguments")
        if self.arguments == "objects":
            arguments = (json.loads(arguments) if isinstance(arguments, str) and arguments else arguments) or {}
        elif not isinstance(arguments, str):
            arguments = json.dumps(arguments or {}, ensure_ascii=False)
        return _with_function(call, {**function_of(call), "arguments": arguments})


_OWN = Reading()


def messages_as_read(
    messages: Sequence[Message], num_own: int, render: Callable[[list[dict[str, Any]]], str], *, reads_strings: bool
) -> list[dict[str, Any]]:
    """Return the messages in the first reading in which the template loses nothing of what is looked for.

    `render` is the template over messages. If it fails over every reading, the messages are returned as transformers
    would hand them over. `reads_strings` tells whether the template writes a content that is a string. Raises
    FieldError for what the template leaves out in all of them; the last `num_own` messages are those of the row.
    """
    own = _OWN.of(messages, frozenset())
    marked = [_marked(index, message, reads_strings) for index, message in enumerate(messages)]
    if all(each is message for each, message in zip(marked, messages, strict=True)):
        return own
    trial, lost = _Trial(messages, marked, render), None
    for reading in _readings(messages, reads_strings):
        swapped = frozenset[int]()
        given, text = trial.of(reading, swapped)
        if reading.swaps_contents:
            swapped = frozenset(trial.lost_contents(text))
            given, text = trial.of(reading, swapped)
        if text is None:
            continue
        problem = trial.problem(given, text, len(messages) - num_own)
        if problem is None:
            return reading.of(messages, swapped)
        lost = lost or problem
    if lost is not None:
        raise lost
    return own


def content_text(message: Message) -> str:
    """Return the text of a content, whatever its form."""
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def _readings(messages: Sequence[Message], reads_strings: bool) -> Iterator[Reading]:
    """Yield the readings that differ for these messages, those with the fewest changes first."""
    calls = [call for message in messages for call in message.get("tool_calls") or ()]
    given = {type(function_of(call).get("arguments")) for call in calls}
    has_null = any(message.get("content", "") is None and message.get("tool_calls") for message in messages)
    is_swappable = not reads_strings or any(isinstance(message.get("content"), list) for message in messages)
    forms = ["own", *(["objects"] if given - {dict} else []), *(["texts"] if dict in given else [])]
    choices = product(
        forms,
        (False, True)[: 1 + is_swappable],
        (False, True)[: 1 + any(message["role"] == "developer" for message in messages)],
        (False, True)[: 1 + has_null],
        (False, True)[: 1 + any(message.get("tool_calls") == [] for message in messages)],
    )
    yield from sorted((Reading(*choice) for choice in choices), key=lambda reading: reading.num_changes)


def _marked(index: int, message: Message, reads_strings: bool) -> Message:
    """Return a message with marks in place of its texts and calls; the message itself if nothing is looked for."""
    content, calls = message.get("content"), message.get("tool_calls")
    is_rare = message["role"] not in _ROLES or message.get("tool_calls") == []
    is_marked = is_rare or isinstance(content, list) or (isinstance(content, str) and not reads_strings)
    if not is_marked and not calls:
        return message
    found = dict(message)
    if is_marked and isinstance(content, str):
        found["content"] = _mark(index)
    elif is_marked and isinstance(content, list):
        found["content"] = [{**part, "text": _mark(index, number)} for number, part in enumerate(content)]
    if calls:
        found["tool_calls"] = [_marked_call(index, number, call) for number, call in enumerate(calls)]
    return found


def _marked_call(index: int, number: int, call: Message) -> dict[str, Any]:
    function = dict(function_of(call))
    arguments, mark = function.get("arguments"), {_mark("arguments", index, number): "x"}
    if arguments is not None:
        function["arguments"] = mark if isinstance(arguments, dict) else json.dumps(mark)
    return _with_function(call, {**function, "name": _mark("call", index, number)})


def _with_function(call: Message, function: Mapping[str, Any]) -> dict[str, Any]:
    return dict(function) if call.get("function") is None else {**call, "function": dict(function)}


def _mark(*places: Any) -> str:
    return "x".join([_MARK, *map(str, places), _MARK])


def _shows_call(text: str, index: int, number: int, function: Mapping[str, Any]) -> bool:
    """Tell whether a marked call is in the text, and its arguments neither quoted twice nor as Python writes them."""
    mark = _mark("arguments", index, number)
    if f"'{mark}'" in text or f'\\"{mark}' in text:
        return False
    if isinstance(function.get("arguments"), str) and function["arguments"]:
        return mark in text
    return mark in text or _mark("call", index, number) in text


def _swapped(content: Any) -> Any:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return None if content is None else content_text({"content": content})


@dataclass(frozen=True)
class _Trial:
    """A template that is tried over marked messages."""

    messages: Sequence[Message]
    marked: Sequence[Message]
    render: Callable[[list[dict[str, Any]]], str]

    def of(self, reading: Reading, swapped: frozenset[int]) -> tuple[list[dict[str, Any]], str | None]:
        """Return the marked messages in a reading, and what the template writes; None if it fails over them."""
        given = reading.of(self.marked, swapped)
        try:
            return given, self.render(given)
        except Exception:  # noqa: BLE001 - a template is a program: whatever it raises, it cannot read this
            return given, None

    def problem(self, given: list[dict[str, Any]], text: str, num_before: int) -> FieldError | None:
        """Return what the text lacks of the messages that were given; `num_before` are not the row's."""
        for index, message in enumerate(given):
            for number, call in enumerate(message.get("tool_calls") or ()):
                if not _shows_call(text, index, number, function_of(call)):
                    return FieldError(f"messages[{index - num_before}].tool_calls", NO_PLACE)
        for index in self.lost_contents(text):
            role = self.messages[index]["role"]
            reason = f"the chat template of this model leaves out this content of a message of the role {role!r}"
            return FieldError(f"messages[{index - num_before}].content", reason)
        return None

    def lost_contents(self, text: str | None) -> Iterator[int]:
        """Yield the numbers of the messages whose marked contents are not in the text, or as Python writes them.

        Without a text, these are all that have parts.
        """
        for index, message in enumerate(self.marked):
            content = message.get("content")
            if content is None or content is self.messages[index].get("content"):
                continue
            marks = [part["text"] for part in content] if isinstance(content, list) else [content]
            if text is None:
                if isinstance(content, list):
                    yield index
            elif any(mark not in text or f"'text': '{mark}" in text for mark in marks):
                yield index
