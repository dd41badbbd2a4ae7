"""The chat that a response asks for: its items as messages, and its functions as chats have them."""

from __future__ import annotations

from typing import Any

from endpoint.requests.response_items import messages_of
from pipeline.errors import FieldError
from pipeline.requests.response import ResponseAsked
from pipeline.text.chat import Chat
from pipeline.text.tools.asked import read_tools

_FUNCTION = {"name", "description", "parameters", "strict"}


def chat_of_response(asked: ResponseAsked) -> Chat:
    """Return the chat that is to be rendered; a new message begins. Raises FieldError."""
    tools = asked.tools
    if isinstance(tools, list):
        tools = [_as_in_chats(tool) for tool in tools]
    try:
        found = read_tools(tools, _as_in_chats(asked.tool_choice), asked.parallel_tool_calls)
    except FieldError as error:
        where = error.where.replace(".function", "", 1)  # a function's fields are the tool's own here
        raise FieldError(where, error.reason, code=error.code) from error
    return Chat(
        messages_of(asked.input, asked.instructions),
        found,
        options=asked.chat_template_kwargs or {},
        effort=asked.effort,
        effort_field="reasoning.effort",
        begins=True,
    )


def _as_in_chats(value: Any) -> Any:
    """Return a tool, or the choice of one, as chats have it: the fields of its function one level deeper."""
    if not isinstance(value, dict) or value.get("type") != "function":
        return value
    rest = {name: each for name, each in value.items() if name not in _FUNCTION}
    return {**rest, "function": {name: each for name, each in value.items() if name in _FUNCTION}}
