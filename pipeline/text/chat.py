"""Chat: the messages of a row or request, and all else that its prompt is rendered from, with the form of its answer.

AnswerForm says what an answer's text may consist of, and its reader takes it apart while it grows.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from pipeline.errors import FieldError
from pipeline.requests.strict_json import JsonEnd
from pipeline.text.answer_parts import Answer, Arguments, CallBegins, Content, Event, Reasoning, ReasoningTags, Thought
from pipeline.text.tools.asked import ToolsAsked, read_tools
from pipeline.text.tools.format import Format

_Result = TypeVar("_Result")
Steps: TypeAlias = Generator[Event | None, None, _Result]


@dataclass(frozen=True)
class AnswerForm:
    """The parts that one answer may have. Without tags and tools it is its content."""

    tags: ReasoningTags | None = None
    thought: Thought = Thought.FREE  # where the prompt leaves a model that thinks
    family: Format | None = None
    names: frozenset[str] = frozenset()  # of the functions that may be called
    is_forced: bool = False  # whether a grammar makes all of the answer behind the thought calls
    has_form: bool = False  # whether a grammar makes it calls, or a text of a form

    @property
    def is_plain(self) -> bool:
        """Whether the answer is its content, as it is."""
        return (self.tags is None or self.thought == Thought.CLOSED) and not self.names

    def new_call_id(self, seed: str) -> str:
        """Return the id of a call in the answer: the same for the same seed."""
        assert self.family is not None, "an answer with calls has their family"
        return self.family.new_id(seed)

    def read(self, text: str) -> Answer:
        """Return the parts of a whole answer."""
        answer, reader = Answer(), AnswerReader(self)
        answer.add(reader.push(text))
        answer.add(reader.finish())
        return answer


class AnswerReader:
    """A reader of one answer: the thought, and behind it content and calls. Events do not depend on how text is split.

    A thought stands at the begin, and has no end if the text has none. White space around thoughts and calls belongs to
    the format. A step that needs more text yields None.
    """

    def __init__(self, form: AnswerForm) -> None:
        self._form = form
        self._text, self._is_over = "", False  # what is not settled yet, and whether no more follows
        self._steps = self._read()

    def push(self, text: str) -> list[Event]:
        """Add text; return what is certain now."""
        self._text += text
        return list(iter(lambda: next(self._steps, None), None))

    def finish(self) -> list[Event]:
        """Return the rest once no text follows."""
        self._is_over = True
        return [event for event in self._steps if event is not None]

    def _read(self) -> Steps[None]:
        form = self._form
        if form.tags is not None and form.thought != Thought.CLOSED:
            yield from self._thought(form.tags, form.thought)
        if not form.names or form.family is None:
            yield from self._content()
        elif form.is_forced:
            yield from self._forced_calls(form.family)
        elif form.has_form:
            yield from self._calls_or_form(form.family)
        else:
            yield from self._content_and_calls(form.family)

    def _thought(self, tags: ReasoningTags, thought: Thought) -> Steps[None]:
        while thought == Thought.FREE and not (begin := self._text.lstrip()).startswith(tags.open):
            if self._is_over or not tags.open.startswith(begin):
                return
            yield None
        if thought == Thought.FREE:
            self._text = self._text.lstrip()[len(tags.open) :]
        yield from self._skip_space()
        is_closed, _ = yield from self._up_to(tags.close, Reasoning)
        self._text = self._text.lstrip()[len(tags.close) :] if is_closed else ""
        yield from self._skip_space()

    def _content(self) -> Steps[None]:
        while self._text or not self._is_over:
            if self._text:
                yield Content(self._taken(len(self._text)))
            yield None

    def _content_and_calls(self, family: Format) -> Steps[None]:
        """Read an answer that may call tools, or not.

        A call is held back until it is whole, because a text that only looks like a call, or that calls a function
        which was not offered, is content.
        """
        has_content = is_behind_call = False
        while family.begins_bare and not self._text.strip() and not self._is_over:
            yield None
        if family.begins_bare and self._text.lstrip().startswith("{"):
            is_behind_call = yield from self._call(family)
        while True:
            if is_behind_call and not has_content:
                yield from self._skip_space()
            is_marked, has_more = yield from self._up_to(family.marker, Content)
            has_content, is_behind_call = has_content or has_more, is_behind_call and not has_more
            if not is_marked:
                break
            begin = self._taken(self._text.index(family.marker) + len(family.marker))
            if (yield from self._call(family)):
                self._text = begin.removesuffix(family.marker) + self._text  # white space, if content follows
                is_behind_call = True
            else:
                yield Content(begin)
                has_content, is_behind_call = True, False
        if self._text and not is_behind_call:
            yield Content(self._text)

    def _call(self, family: Format) -> Steps[bool]:
        """Read the calls that the text begins with; return False, and leave it, if it begins with none."""
        ends = dict[int, JsonEnd]()
        while (found := family.read(self._text, ends, self._is_over)) is None:
            yield None
        if not found.calls or any(call.name not in self._form.names for call in found.calls):
            return False
        for call in found.calls:
            yield from (CallBegins(call.name), Arguments(call.arguments))
        self._taken(found.end)
        return True

    def _forced_calls(self, family: Format) -> Steps[None]:
        """Read calls which a grammar holds to their format: arguments come as they are written.

        Of a text that was cut off, the last call has the begin of its arguments; the begin of a call that has no name
        yet is content.
        """
        before = ""  # the end of the call before
        while True:
            head = family.forced_head.match(self._text, len(before)) if self._text.startswith(before) else None
            if head is not None:
                self._taken(head.end())
                yield CallBegins(head["name"])
                yield from self._forced_arguments()
                before = family.close
            elif self._is_over:
                break
            else:
                yield None
        rest = self._text.lstrip() if before else self._text
        if before.startswith(rest) or rest.startswith(before):
            rest = rest[len(before) :]
        if rest.strip(" ]\n\r\t"):
            yield Content(rest)

    def _forced_arguments(self) -> Steps[None]:
        json_end, num_sent = JsonEnd(0), 0
        while True:
            end = json_end.of(self._text)
            if more := self._text[num_sent:end]:
                yield Arguments(more)
            num_sent += len(more)
            if end is not None or self._is_over:
                break
            yield None
        self._taken(num_sent)

    def _calls_or_form(self, family: Format) -> Steps[None]:
        """Read an answer that a grammar holds to calls, or to a form. Nothing in a text of the form is a call."""
        while (is_call := family.begins_call(self._text, self._form.names)) is None and not self._is_over:
            yield None
        yield from self._forced_calls(family) if is_call else self._content()

    def _up_to(self, tag: str, kind: type[Reasoning | Content]) -> Steps[tuple[bool, bool]]:
        """Read the text before a tag, which may come in pieces; return whether it comes, and whether there was text.

        White space before the tag, or before the end, is left.
        """
        has_text = False
        while True:
            position = self._text.find(tag)
            held = 0 if position >= 0 or self._is_over else _overlap(self._text, tag)
            settled = self._text[: position if position >= 0 else len(self._text) - held].rstrip()
            if settled:
                has_text = True
                yield kind(self._taken(len(settled)))
            if position >= 0 or self._is_over:
                return position >= 0, has_text
            yield None

    def _skip_space(self) -> Steps[None]:
        while not (text := self._text.lstrip()) and not self._is_over:
            yield None
        self._text = text

    def _taken(self, size: int) -> str:
        """Return the begin of the text, which is settled now."""
        taken, self._text = self._text[:size], self._text[size:]
        return taken


def _overlap(text: str, tag: str) -> int:
    """Return the length of the longest end of the text with which the tag may begin."""
    return next((size for size in range(len(tag) - 1, 0, -1) if text.endswith(tag[:size])), 0)


@dataclass(frozen=True)
class Chat:
    """A chat that is not rendered yet. `messages` are not checked yet.

    Unless it is said, a last message of the assistant is continued, and otherwise a new one begins.
    """

    messages: Any
    asked: ToolsAsked | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)  # of the template, by the row's own columns
    options: Mapping[str, Any] = field(default_factory=dict)  # and by `chat_template_kwargs`, not checked yet
    effort: str | None = None  # `reasoning_effort`, or what the field is called that asked for it:
    effort_field: str = "reasoning_effort"
    continues: bool | None = None  # `continue_final_message`
    begins: bool | None = None  # `add_generation_prompt`

    @classmethod
    def of(cls, messages: Any, asked: Mapping[str, Any], variables: Mapping[str, Any] | None = None) -> Chat:
        """Return the chat of messages and of what is asked for beside them, by its names in the API.

        Raises FieldError for tools that are wrong.
        """
        return cls(
            messages,
            read_tools(asked.get("tools"), asked.get("tool_choice"), asked.get("parallel_tool_calls")),
            variables or {},
            asked.get("chat_template_kwargs") or {},
            asked.get("reasoning_effort"),
            continues=asked.get("continue_final_message"),
            begins=asked.get("add_generation_prompt"),
        )

    @property
    def num_characters_of_tools(self) -> int:
        """The size of what may be called, as JSON."""
        return 0 if self.asked is None else self.asked.num_characters

    def ending(self, messages: Sequence[Mapping[str, Any]]) -> tuple[bool, bool]:
        """Return whether the last message is continued, and whether a new one begins. Raises FieldError."""
        is_answer = messages[-1]["role"] == "assistant"
        if self.continues and self.begins:
            raise FieldError("continue_final_message", "it contradicts add_generation_prompt, which is true as well")
        if self.continues and not is_answer:
            raise FieldError("continue_final_message", "the last message is not the assistant's")
        continues = is_answer and self.begins is None if self.continues is None else self.continues
        if continues and messages[-1].get("tool_calls"):
            last = f"messages[{len(messages) - 1}].tool_calls"
            raise FieldError(last, "the last message has calls and cannot be continued; add messages of the role tool")
        return continues, not continues if self.begins is None else self.begins


@dataclass(frozen=True)
class ChatPrompt:
    """A prompt that the chat template has written, and the form of what follows it."""

    text: str
    token_ids: list[int]
    form: AnswerForm = field(default_factory=AnswerForm)
    asked: ToolsAsked | None = None
