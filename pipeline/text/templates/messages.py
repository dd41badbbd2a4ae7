"""Messages of a chat, as rows, requests and lines of batch files have them, and as a template reads them.

They are checked, and never rewritten. Templates differ in what they read, though: one writes the JSON text of a call's
arguments as it is, the next one needs the object and would quote the text twice; one reads a content as parts, the next
one joins strings. So a chat with calls, parts or rare roles is first rendered with marks in place of its texts. If a
mark is missing, or stands in what Python calls a value, the messages are changed as little as helps.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations, product
from json import JSONDecodeError
from typing import Any

from pipeline.errors import FieldError
from pipeline.requests.body import TEXT
from pipeline.requests.strict_json import check_json, parsed
from pipeline.requests.token_kinds import MESSAGES
from pipeline.text.tools.asked import check_name

_ROLE = re.compile(r"[\w .-]+")
_MAX_ID = 256  # characters of the id of a call
_TEXTS = ("name", "reasoning", "reasoning_content")  # fields that hold a text, where a message has them
_SAID_OTHERWISE = ("audio", "function_call", "refusal")  # of the API: they hold what no template would show
Message = Mapping[str, Any]
Change = Callable[[Message], Message]
_ROLES = ("system", "user", "assistant")  # those that every template is expected to write
NO_PLACE = "the chat template of this model has no place for it"
_MARKS = re.compile("zqjx[a-z0-9]+?xzqj")  # no text has such a word


def check_messages(messages: Any) -> None:
    """Raise FieldError for messages that no chat template can be given.

    A role is any word, since it is the template that knows roles. A content is a string or a list of text parts; a
    message of the assistant with calls may have none. Fields that are null count as absent. Other fields may hold
    whatever JSON can say: the template gets them.
    """
    for index, message in enumerate(MESSAGES.read("messages", messages)):
        _check_message(f"messages[{index}]", message)


def _check_message(where: str, message: Any) -> None:
    if not isinstance(message, dict):
        raise FieldError(where, "expected an object with role and content")
    role = message.get("role")
    if not isinstance(role, str) or not _ROLE.fullmatch(role):  # templates put it between the halves of a control token
        got = f"got {ascii(role)[:80]}"
        raise FieldError(f"{where}.role", f"expected a word, such as system, user, assistant or tool, {got}")
    check_json(where, message)
    for name in _TEXTS:
        TEXT.if_given(f"{where}.{name}", message.get(name))
    for name in _SAID_OTHERWISE:
        if message.get(name):
            raise FieldError(f"{where}.{name}", "it is not supported; leave it out", is_unsupported=True)
    calls = message.get("tool_calls")
    if calls and role != "assistant":
        reason = f"a message of the role {role!r} has no calls"
        raise FieldError(f"{where}.tool_calls", reason, is_unsupported=True)
    if calls is not None and calls != []:  # some servers write an empty list into every answer
        check_calls(f"{where}.tool_calls", calls)
    if role == "tool" and message.get("tool_call_id") is not None:
        check_id(f"{where}.tool_call_id", message["tool_call_id"])
    if message.get("content") is not None or not calls:
        content_texts(f"{where}.content", message.get("content"), ("text",), "text parts are")


def content_texts(where: str, content: Any, kinds: Sequence[str], only: str) -> list[str]:
    """Return the texts of a string or a list of parts of these types. Raises FieldError with `only` for other types."""
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list) or not content:
        raise FieldError(where, "expected a string, or a list of text parts")
    for index, part in enumerate(content):
        place = f"{where}[{index}]"
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            type_ = f'type "{kinds[0]}"' if len(kinds) == 1 else "a type"
            raise FieldError(place, f"expected an object with {type_} and a text")
        if part["type"] not in kinds:
            reason = f"{part['type']!a:.64} is not supported, only {only}"
            raise FieldError(f"{place}.type", reason, is_unsupported=True)
        if not isinstance(part.get("text"), str):
            raise FieldError(f"{place}.text", "expected a string")
    return [part["text"] for part in content]


def check_calls(where: str, value: Any) -> None:
    """Raise FieldError for what is no list of calls.

    A call has its name and arguments in `function`, as in the OpenAI API, or itself, as some data sets write it.
    """
    if not isinstance(value, list) or not value:
        raise FieldError(where, "expected a list of at least one call")
    for index, call in enumerate(value):
        _check_call(f"{where}[{index}]", call)


def function_of(call: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the name and arguments of a call that was checked."""
    function = call.get("function")
    return call if function is None else function


def check_id(where: str, value: Any) -> None:
    """Raise FieldError for what is no id of a call."""
    if not isinstance(value, str) or not 1 <= len(value) <= _MAX_ID or not value.isprintable():
        raise FieldError(where, f"expected the id of a call, a string of 1 to {_MAX_ID} characters")


def _check_call(where: str, call: Any) -> None:
    if not isinstance(call, Mapping):
        raise FieldError(where, "expected an object with id, type and function")
    if call.get("id") is not None:
        check_id(f"{where}.id", call["id"])
    if call.get("type") not in ("function", None):
        raise FieldError(f"{where}.type", 'expected "function"')
    if call.get("function") is None and "name" in call:
        place = where
    else:
        place = f"{where}.function"
        if not isinstance(call.get("function"), Mapping):
            raise FieldError(place, "expected an object with name and arguments")
    function = function_of(call)
    check_name(f"{place}.name", function.get("name"))
    _check_arguments(f"{place}.arguments", function.get("arguments"))


def _check_arguments(where: str, value: Any) -> None:
    if value is None or value == "":
        return
    if isinstance(value, str):
        try:
            value = parsed(value)
        except ValueError as error:
            why = "" if isinstance(error, JSONDecodeError) else f": {error}"
            raise FieldError(where, f"expected JSON text of an object{why}") from None
    if not isinstance(value, dict):
        raise FieldError(where, "expected an object, or JSON text of one")


def messages_as_read(
    messages: Sequence[Message], num_own: int, render: Callable[[list[Message]], str], *, reads_strings: bool
) -> list[Message]:
    """Return the messages with the fewest changes with which the template loses nothing of what is looked for.

    `render` is the template over messages. If no change helps, the messages are returned as transformers would hand
    them over. `reads_strings` tells whether the template writes a content that is a string. Raises FieldError for what
    the template always leaves out; the last `num_own` messages are those of the row.
    """
    own = _given(messages)
    marked = [_marked(index, message, reads_strings) for index, message in enumerate(messages)]
    if all(each is message for each, message in zip(marked, messages, strict=True)):
        return own
    problem, lost, is_written = None, list[int](), False
    for changes, swaps in product(_readings(messages), (False, True)):
        if swaps and not lost:
            continue
        swapped = lost if swaps else ()
        given = _given(marked, changes, swapped)
        try:
            text = render(given).lower()  # as the marks are
        except Exception:  # noqa: BLE001 - a template is a program: whatever it raises, it cannot read this
            lost = [index for index, message in enumerate(messages) if isinstance(message.get("content"), list)]
            continue
        lost = [index for index, message in enumerate(marked) if _lacks_content(text, message, messages[index])]
        if not changes and not swaps:
            is_written = set(_MARKS.findall(json.dumps(given))) <= set(_MARKS.findall(text))
        found = _problem(given, text, lost, len(messages) - num_own)
        if found is None:
            return _given(messages, changes, swapped)
        problem = problem or found
    if problem is not None and not is_written:
        raise problem
    return own


def content_text(message: Message) -> str:
    """Return the text of a content, whatever its form."""
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def _given(messages: Sequence[Message], changes: Sequence[Change] = (), swapped: Collection[int] = ()) -> list[Message]:
    """Return what transformers' `apply_chat_template` gives a template, changed, with other contents in `swapped`."""
    found = [{name: value for name, value in message.items() if value is not None} for message in messages]
    for change in changes:
        found = [dict(change(message)) for message in found]
    return [_swapped(message) if index in swapped else message for index, message in enumerate(found)]


def _readings(messages: Sequence[Message]) -> Iterator[tuple[Change, ...]]:
    """Yield the sets of changes that make a difference to these messages, the smallest first."""
    own = _given(messages)
    changes = [change for change in _CHANGES if _given(messages, [change]) != own]
    for size in range(len(changes) + 1):
        yield from combinations(changes, size)


def _with_calls(message: Message, change: Callable[[int, Message], Message]) -> Message:
    """Return a message with the function of each of its calls changed."""
    calls = [
        change(number, call) if call.get("function") is None else {**call, "function": change(number, call["function"])}
        for number, call in enumerate(message.get("tool_calls") or ())
    ]
    return {**message, "tool_calls": calls} if calls else message


def _as_object(_: int, function: Message) -> Message:
    given = function.get("arguments")
    return {**function, "arguments": json.loads(given or "{}") if isinstance(given, str) else given or {}}


def _as_text(_: int, function: Message) -> Message:
    given = function.get("arguments")
    return {**function, "arguments": given if isinstance(given, str) else json.dumps(given or {}, ensure_ascii=False)}


_CHANGES: tuple[Change, ...] = (
    lambda message: _with_calls(message, _as_object),
    lambda message: _with_calls(message, _as_text),
    lambda message: {**message, "role": "system"} if message["role"] == "developer" else message,
    lambda message: {**message, "content": message.get("content")} if message.get("tool_calls") else message,  # null
    lambda message: {name: value for name, value in message.items() if name != "tool_calls" or value != []},
)


def _swapped(message: Message) -> Message:
    content = message["content"]
    parts = [{"type": "text", "text": content}]
    return {**message, "content": parts if isinstance(content, str) else content_text(message)}


def _marked(index: int, message: Message, reads_strings: bool) -> Message:
    """Return a message with marks in place of its texts and calls; the message itself if nothing is looked for."""
    content, calls = message.get("content"), message.get("tool_calls")
    if isinstance(content, list):
        content = [{**part, "text": _mark(index, number)} for number, part in enumerate(content)]
    elif content is not None and (message["role"] not in _ROLES or calls == [] or not reads_strings):
        content = _mark(index)
    elif not calls:
        return message
    return _with_calls({**message, "content": content}, partial(_marked_function, index))


def _marked_function(index: int, number: int, function: Message) -> Message:
    found = {**function, "name": _mark("call", index, number)}
    if (arguments := function.get("arguments")) is not None:
        mark = {_mark("arguments", index, number): "x"}
        found["arguments"] = mark if isinstance(arguments, dict) else json.dumps(mark)
    return found


def _mark(*places: Any) -> str:
    return "x".join(["zqj", *map(str, places), "zqj"])


def _problem(given: Sequence[Message], text: str, lost: Sequence[int], num_before: int) -> FieldError | None:
    """Return what the text lacks of the marked messages; `num_before` are not the row's."""
    for index, message in enumerate(given):
        for number, call in enumerate(message.get("tool_calls") or ()):
            if not _shows_call(text, index, number, function_of(call).get("arguments")):
                return FieldError(f"messages[{index - num_before}].tool_calls", NO_PLACE)
    for index in lost:
        where = "chat.system_prompt" if index < num_before else f"messages[{index - num_before}].content"
        role = given[index]["role"]
        return FieldError(where, f"the chat template of this model leaves out this content of the role {role!r}")
    return None


def _shows_call(text: str, index: int, number: int, arguments: Any) -> bool:
    """Tell whether a marked call is in the text, and its arguments neither quoted twice nor as Python writes them."""
    mark = _mark("arguments", index, number)
    if any(begin + mark in text for begin in ("{'", '\\"', "'{\"")):
        return False
    is_text = isinstance(arguments, str) and arguments
    return mark in text or (not is_text and _mark("call", index, number) in text)


def _lacks_content(text: str, marked: Message, message: Message) -> bool:
    """Tell whether a mark of the content is not in the text, or as Python writes it."""
    content = marked.get("content")
    if content is None or content is message.get("content"):
        return False
    marks = [part["text"] for part in content] if isinstance(content, list) else [content]
    return any(mark not in text or f"'text': '{mark}" in text for mark in marks)
