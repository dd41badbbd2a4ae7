"""Fields of a chat, from which its prompt is rendered."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator

from endpoint.requests.fields import Strict, field_error, wrong
from endpoint.requests.messages import Messages
from pipeline.errors import FieldError
from pipeline.text.chat import Chat
from pipeline.text.tools.asked import ToolsAsked, read_tools

_Effort = Annotated[str, Field(max_length=64)]


class Function(Strict):
    """A function that may be called; `parameters` is the JSON Schema of its arguments."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolField(Strict):
    """A tool as a client may send it."""

    type: Literal["function"]
    function: Function


class NamedFunction(Strict):
    """The name of a function."""

    name: str


class NamedTool(Strict):
    """The only tool that may be called."""

    type: Literal["function"]
    function: NamedFunction


_Tools = Annotated[Any, PlainValidator(lambda value: value, json_schema_input_type=list[ToolField] | None)]
_Choice = Annotated[
    Any,
    PlainValidator(lambda value: value, json_schema_input_type=Literal["none", "auto", "required"] | NamedTool | None),
]


class ConversationFields(Strict):
    """Messages, tools, and how the chat template is to render them; the extensions have vLLM's names."""

    messages: Messages | None = None
    tools: _Tools = None
    tool_choice: _Choice = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: _Effort | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None

    @cached_property
    def asked(self) -> ToolsAsked | None:
        """The tools that may be called; None without any. Raises ApiError."""
        try:
            return read_tools(self.tools, self.tool_choice, self.parallel_tool_calls)
        except FieldError as error:
            raise field_error(error) from error

    def chat(self) -> Chat:
        """Return the chat that is to be rendered. Raises ApiError for fields that contradict each other."""
        assert self.messages is not None, "a chat has messages"
        chat = Chat(
            self.messages,
            self.asked,
            options=self.chat_template_kwargs or {},
            effort=self.reasoning_effort,
            continues=self.continue_final_message,
            begins=self.add_generation_prompt,
        )
        try:
            chat.ending(self.messages)
        except FieldError as error:
            raise field_error(error) from error
        return chat

    def refuse_without_messages(self) -> None:
        """Raise ApiError for a field that only a chat has."""
        for name in ConversationFields.model_fields.keys() - {"messages"}:
            if getattr(self, name) is not None:
                raise wrong(name, "it needs messages")
