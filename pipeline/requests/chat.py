"""Body of POST /v1/chat/completions (https://platform.openai.com/docs/api-reference/chat)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pipeline.errors import FieldError
from pipeline.requests.asked import Asked
from pipeline.requests.body import Body, asks
from pipeline.requests.kinds import BOOLEAN, LARGEST, OBJECT, anything, integer, text
from pipeline.requests.token_kinds import MESSAGES, TOOL_CHOICE, TOOLS

EFFORT = text(64)


@dataclass(frozen=True, kw_only=True)
class Conversation(Body):
    """Messages, tools, and how the chat template is to render them; the extensions have vLLM's names."""

    messages: list[Any] | None = asks(MESSAGES, "The messages of the chat, each with role and content.")
    tools: Any = asks(anything(TOOLS), "Functions that may be called.")
    tool_choice: Any = asks(anything(TOOL_CHOICE), "none, auto, required, or the one function that is called.")
    parallel_tool_calls: bool | None = asks(BOOLEAN, "false allows one call at most.")
    reasoning_effort: str | None = asks(EFFORT, "How much a model thinks, if its template asks for that.")
    chat_template_kwargs: dict[str, Any] | None = asks(OBJECT, "Variables of the chat template.")
    continue_final_message: bool | None = asks(BOOLEAN, "Continue the last message, which is the assistant's.")
    add_generation_prompt: bool | None = asks(BOOLEAN, "Begin a new message of the assistant.")

    def of_chat(self) -> dict[str, Any]:
        """Return the fields beside the messages from which a prompt is made; what they hold is checked there."""
        return self.given(name for name in Conversation.table() if name != "messages")


@dataclass(frozen=True, kw_only=True)
class ChatAsked(Conversation, Asked):
    """What a chat asks for. Unless it says otherwise, a last message of the assistant is continued."""

    unsupported: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        name: values for name, values in Asked.unsupported.items() if name not in Conversation.table()
    }
    id_prefix: ClassVar[str] = "chatcmpl-"
    default_max_tokens: ClassVar[int] = LARGEST  # it may fill the context

    messages: list[Any] = asks(MESSAGES, "The messages of the chat, each with role and content.", is_required=True)
    max_tokens: int | None = asks(integer(ge=1), "The older name of max_completion_tokens, which goes before it.")
    max_completion_tokens: int | None = asks(integer(ge=1), "Most output tokens; unless given, what the context has.")
    logprobs: bool | None = asks(BOOLEAN, "Add the log-probability of each token.")
    top_logprobs: int | None = asks(integer(ge=0, le=20), "And those of this many likely tokens.")

    def check(self) -> None:
        super().check()
        if self.top_logprobs and not self.logprobs:
            raise FieldError("top_logprobs", "it needs logprobs to be true")

    def sampling(self) -> dict[str, Any]:
        given = super().sampling()
        if (limit := self.max_completion_tokens or self.max_tokens) is not None:
            given["max_tokens"] = limit
        if self.logprobs is not None:
            given["logprobs"] = (self.top_logprobs or 0) if self.logprobs else None
        return given
