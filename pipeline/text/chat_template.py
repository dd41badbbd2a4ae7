"""ChatTemplate: what a chat template reads, and how the models that it is made for write their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from functools import cached_property
from typing import Any

from pipeline.errors import FieldError
from pipeline.text.chat import Chat
from pipeline.text.reasoning import ReasoningTags, reasoning_tags
from pipeline.text.tools.asked import ToolsAsked
from pipeline.text.tools.families import FAMILIES, family_of
from pipeline.text.tools.family import Family

_FAMILY_OF_OTHERS = FAMILIES["hermes"]  # of forced calls, where the template has no format


class ChatTemplate:
    """A chat template, as Jinja text. `tool_calls` and `reasoning` name formats; "auto" finds those of the template."""

    def __init__(self, source: str | None, tool_calls: str, reasoning: str) -> None:
        self._source, self._tool_calls, self._reasoning = source or "", tool_calls, reasoning

    def check_names(self) -> None:
        """Raise ValueError if no format has one of the names."""
        family_of(self._tool_calls, self._source)
        reasoning_tags(self._reasoning, self._source)

    @cached_property
    def family(self) -> Family | None:
        """The format of calls; None if none is known. Raises ValueError for an unknown name."""
        return family_of(self._tool_calls, self._source)

    @cached_property
    def tags(self) -> ReasoningTags | None:
        """The tags around thoughts; None if there are none. Raises ValueError for an unknown name."""
        return reasoning_tags(self._reasoning, self._source)

    @property
    def marks(self) -> frozenset[str]:
        """The tokens that mark calls and thoughts."""
        tags = () if self.tags is None else (self.tags.open, self.tags.close)
        return frozenset((*(() if self.family is None else self.family.special), *tags))

    @property
    def family_of_calls(self) -> Family:
        """The format of calls that are asked for: forced ones need none of the template's own."""
        return self.family or _FAMILY_OF_OTHERS

    def variables_of(self, chat: Chat, taken: Set[str]) -> dict[str, Any]:
        """Return the variables that a chat sets. Raises FieldError for what the template does not read."""
        if not isinstance(chat.options, Mapping):
            raise FieldError("chat_template_kwargs", "expected an object")
        for name in chat.options:
            where = f"chat_template_kwargs.{ascii(name)[1:-1]:.64}"
            if name in taken:
                raise FieldError(where, "the chat template gets this name from elsewhere; leave it out")
            self._check_reads(where, name)
        found = dict(chat.options)
        if chat.effort is not None:
            if "reasoning_effort" in found:
                raise FieldError(chat.effort_field, "chat_template_kwargs has it, too; give one of them")
            self._check_reads(chat.effort_field, "reasoning_effort")
            found["reasoning_effort"] = chat.effort
        if chat.asked is not None and self._shows(chat.asked):
            found["tools"] = [tool.for_template for tool in chat.asked.tools]
        return found

    def check_messages(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Raise FieldError for calls in messages that the template would leave out."""
        if "tool_calls" in self._source:
            return
        for index, message in enumerate(messages):
            if message.get("tool_calls"):
                raise FieldError(f"messages[{index}].tool_calls", "the chat template of this model has no place for it")

    def _shows(self, asked: ToolsAsked) -> bool:
        """Tell whether the template shows tools. Raises FieldError if an answer could not call what is not shown."""
        if "tools" in self._names:
            if self.family is None and asked.mode == "auto":
                reason = "no format of calls is known for this model's chat template; name one in chat.tool_calls, or "
                raise FieldError("tools", f"{reason}force a call by tool_choice", is_unsupported=True)
            return True
        if asked.is_forced:
            return False
        reason = "the chat template of this model has no place for tools; a call can only be forced by tool_choice"
        raise FieldError("tools", reason, is_unsupported=True)

    def _check_reads(self, where: str, name: str) -> None:
        if name not in self._names:
            raise FieldError(where, "the chat template of this model has no such variable", is_unsupported=True)

    @cached_property
    def _names(self) -> frozenset[str]:
        """The names that the template takes from outside."""
        from jinja2 import meta
        from transformers.utils.chat_template_utils import _compile_jinja_template

        environment = _compile_jinja_template(self._source).environment
        return frozenset(meta.find_undeclared_variables(environment.parse(self._source)))
