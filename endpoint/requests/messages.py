"""Messages of a chat, as clients may send them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import PlainValidator

from endpoint.requests.fields import Strict, field_error
from pipeline.errors import FieldError
from pipeline.text.messages import check_messages


def _checked_messages(value: Any) -> Any:
    try:
        check_messages(value)
    except FieldError as error:
        raise field_error(error) from error
    return value


class TextPart(Strict):
    """A text part of a message's content."""

    type: Literal["text"]
    text: str


class FunctionCall(Strict):
    """The function that a call names, and its arguments as JSON text."""

    name: str
    arguments: str


class Call(Strict):
    """A call of a function, in a message of the assistant."""

    id: str
    type: Literal["function"]
    function: FunctionCall


class ChatMessage(Strict):
    """A message as a client may send it."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[Call] | None = None
    tool_call_id: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


Messages = Annotated[list[dict[str, Any]], PlainValidator(_checked_messages, json_schema_input_type=list[ChatMessage])]
