"""Chat: the messages of a row or request, and all else that its prompt is rendered from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.errors import FieldError
from pipeline.text.answers import AnswerForm
from pipeline.text.tools.asked import ToolsAsked, read_tools


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
