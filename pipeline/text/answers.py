"""AnswerForm: what an answer's text may consist of, and the reader that takes it apart while it grows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pipeline.text.answer_parts import Answer, Content, Event
from pipeline.text.reasoning import ReasoningReader, ReasoningTags, Thought
from pipeline.text.tools.family import Family
from pipeline.text.tools.reader import CallReader, EitherReader, ForcedReader, FreeReader


@dataclass(frozen=True)
class AnswerForm:
    """The parts that one answer may have. Without tags and tools it is its content."""

    tags: ReasoningTags | None = None
    thought: Thought = Thought.FREE  # where the prompt leaves a model that thinks
    family: Family | None = None
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

    def reader(self) -> AnswerReader:
        """Return a reader of one answer."""
        return AnswerReader(self)

    def read(self, text: str) -> Answer:
        """Return the parts of a whole answer."""
        answer, reader = Answer(), self.reader()
        answer.add(reader.push(text))
        answer.add(reader.finish())
        return answer


class AnswerReader:
    """A reader of one answer: the thought, and behind it content and calls."""

    def __init__(self, form: AnswerForm) -> None:
        thinks = form.tags is not None and form.thought != Thought.CLOSED
        self._reasoning = ReasoningReader(form.tags, form.thought) if thinks and form.tags is not None else None
        self._calls: CallReader | None = None
        if form.names and form.family is not None:
            self._calls = _call_reader(form, form.family)

    def push(self, text: str) -> list[Event]:
        """Add text; return what is certain now."""
        if self._reasoning is None:
            return self._of_content(text)
        return self._of_events(self._reasoning.push(text))

    def finish(self) -> list[Event]:
        """Return the rest once no text follows."""
        events = [] if self._reasoning is None else self._of_events(self._reasoning.finish())
        return events if self._calls is None else [*events, *self._calls.finish()]

    def _of_events(self, events: Iterable[Event]) -> list[Event]:
        found: list[Event] = []
        for event in events:
            found += self._of_content(event.text) if isinstance(event, Content) else [event]
        return found

    def _of_content(self, text: str) -> list[Event]:
        if self._calls is not None:
            return list(self._calls.push(text))
        return [Content(text)] if text else []


def _call_reader(form: AnswerForm, family: Family) -> CallReader:
    if form.is_forced:
        return ForcedReader(family)
    return EitherReader(family, form.names) if form.has_form else FreeReader(family, form.names)
