"""Bodies of the requests for texts: completions, chats, responses, and lines of OpenAI batch files.

https://platform.openai.com/docs/api-reference/completions, .../chat, .../responses/create (no state is kept), and
.../batch/request-input, whose lines are read as the endpoint reads requests.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pipeline.errors import FieldError
from pipeline.requests.asked import Asked
from pipeline.requests.body import (
    BOOLEAN,
    LARGEST,
    NOTHING,
    OBJECT,
    TEXT,
    Body,
    anything,
    asks,
    integer,
    options,
    read,
    sampled,
    text,
)
from pipeline.requests.token_kinds import MESSAGES, PROMPTS, TOOL_CHOICE, TOOLS, Form, check_token_ids

EFFORT = text(64)
_OWN = ("tools", "tool_choice", "parallel_tool_calls")
_LIST = {"type": "array", "items": {"type": "object"}}
_MAX_ID = 512  # characters


@dataclass(frozen=True, kw_only=True)
class CompletionAsked(Asked):
    """What a completion asks for."""

    id_prefix: ClassVar[str] = "cmpl-"
    default_max_tokens: ClassVar[int] = 16  # as in OpenAI's API

    prompt: str | list[Any] = asks(
        PROMPTS, "A text, token ids, or a list of either; a row of a batch has one.", is_required=True
    )
    max_tokens: int | None = asks(integer(ge=0), "Most output tokens; 16 unless given.")
    best_of: int | None = asks(
        integer(ge=1, le=4096), "Samples for each prompt, of which the n likeliest are shown.", is_of_row=True
    )
    logprobs: int | None = sampled(
        integer(ge=0, le=20), "Log-probabilities of each token and of this many likely ones."
    )
    echo: bool | None = asks(BOOLEAN, "Show the prompt before the text.", in_batches="a row has its prompt beside it")

    def check(self) -> None:
        super().check()
        if self.max_tokens == 0 and not self.echo and self.prompt_logprobs is None:
            raise FieldError("max_tokens", "0 tokens can be asked for only with echo or prompt_logprobs")
        if self.best_of is not None and self.best_of < self.num_choices:
            raise FieldError("best_of", f"it must not be less than n, which is {self.num_choices}")
        if self.stream and self.num_samples > self.num_choices:
            raise FieldError("best_of", "the best of more samples than n cannot be streamed")

    def check_for_batch(self) -> None:
        super().check_for_batch()
        if len(self.prompts) > 1:
            raise FieldError("prompt", "a row of a batch has one prompt; give each prompt its own line")

    def sampling(self) -> dict[str, Any]:
        limit = {} if self.max_tokens is None else {"max_tokens": max(1, self.max_tokens)}
        return {**super().sampling(), **limit}

    @property
    def prompts(self) -> dict[str, str | list[Any]]:
        """Each prompt, a text or token ids, by the path of its field in the body."""
        if isinstance(self.prompt, str) or type(self.prompt[0]) is int:
            return {"prompt": self.prompt}
        return {f"prompt[{index}]": prompt for index, prompt in enumerate(self.prompt)}

    @property
    def num_samples(self) -> int:
        return self.best_of or self.num_choices

    @property
    def needs_prompt_text(self) -> bool:
        return bool(self.echo)

    @property
    def generates(self) -> bool:
        return self.max_tokens != 0


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


@dataclass(frozen=True, kw_only=True)
class ResponseAsked(Asked):
    """What a response asks for."""

    unsupported: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **{name: each for name, each in Asked.unsupported.items() if name not in _OWN},
        **dict.fromkeys(("previous_response_id", "conversation", "prompt", "max_tool_calls"), ()),
        **dict.fromkeys(("prompt_cache_retention", "context_management"), ()),
        "background": (False,),
        "include": ([],),
        "truncation": ("disabled",),
        "top_logprobs": (0,),
        # Fields that other requests have, and this one does not.
        **dict.fromkeys(("n", "response_format", "return_token_ids", "prompt_logprobs"), ()),
        **dict.fromkeys(("include_draft_spans", "include_rejected_drafts"), ()),
    }
    id_prefix: ClassVar[str] = "resp_"
    default_max_tokens: ClassVar[int] = LARGEST

    input: Any = asks(anything({"anyOf": [{"type": "string"}, _LIST]}), "A text or a list of items.", is_required=True)
    instructions: str | None = asks(TEXT, "A message of the system before the input.")
    tools: Any = asks(anything(_LIST), "Functions that may be called.")
    tool_choice: Any = asks(anything({}), "none, auto, required, or the one function that is called.")
    parallel_tool_calls: bool | None = asks(BOOLEAN, "false allows one call at most.")
    text: dict[str, Any] | None = asks(
        options(format=OBJECT, verbosity=NOTHING), "The form of the text, as response_format has it."
    )
    reasoning: dict[str, Any] | None = asks(
        options(effort=EFFORT, summary=NOTHING, generate_summary=NOTHING), "How much a model thinks."
    )
    max_output_tokens: int | None = asks(integer(ge=1), "Most output tokens; unless given, what the context has.")
    chat_template_kwargs: dict[str, Any] | None = asks(OBJECT, "Variables of the chat template.")

    def check(self) -> None:
        super().check()
        if self.includes_usage:
            where = "stream_options.include_usage"
            raise FieldError(where, "the last event has the usage in any case; leave it out", is_unsupported=True)

    def sampling(self) -> dict[str, Any]:
        limit = {} if self.max_output_tokens is None else {"max_tokens": self.max_output_tokens}
        return {**super().sampling(), **limit}

    def form(self) -> Form | None:
        try:
            form = super().form()
        except FieldError as error:
            raise FieldError(_own_name(error.where), _own_name(error.reason), code=error.code) from error
        return form and (_own_name(form[0]), form[1])

    def form_fields(self) -> dict[str, Any]:
        given = self.format
        if given.get("type") == "json_schema":
            schema = {name: each for name, each in given.items() if name != "type"}
            given = {"type": "json_schema", "json_schema": schema}
        return {"response_format": given, **super().form_fields()}

    @property
    def format(self) -> dict[str, Any]:
        """The form of the text that is asked for."""
        found: dict[str, Any] = (self.text or {}).get("format", {"type": "text"})
        return found

    @property
    def effort(self) -> str | None:
        """How much a model is to think."""
        return (self.reasoning or {}).get("effort")


def _own_name(said: str) -> str:
    return said.replace("response_format.json_schema", "text.format").replace("response_format", "text.format")


KINDS: Mapping[str, type[Asked]] = {"/v1/chat/completions": ChatAsked, "/v1/completions": CompletionAsked}


def custom_id(line: Mapping[str, Any]) -> str:
    """Return the id of a line. Raises FieldError if it has none."""
    value = line.get("custom_id")
    if not isinstance(value, str) or not 1 <= len(value) <= _MAX_ID:
        raise FieldError("custom_id", f"expected a string of 1 to {_MAX_ID} characters", stage="read")
    return value


def body_of(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of the request on a line. Raises FieldError for a method or a body that is none."""
    if line.get("method", "POST") != "POST":
        raise FieldError("method", "expected 'POST'", stage="read")
    body = line.get("body")
    if not isinstance(body, dict):
        raise FieldError("body", "expected an object", stage="read")
    return body


def read_request(
    line: Mapping[str, Any],
) -> tuple[str | list[int] | None, list[Any] | None, dict[str, Any], dict[str, Any]]:
    """Return (prompt, messages, overrides, what else is asked) of the request on a line; one of the first two is None.

    Overrides have the names of SamplingParams, and the rest those of the API. Raises FieldError for the first field
    that is wrong, with the reason that the endpoint gives.
    """
    body, url = body_of(line), line.get("url")
    kind = KINDS.get(url) if isinstance(url, str) else None
    if kind is None:
        raise FieldError("url", f"expected one of {', '.join(KINDS)}", stage="read")
    try:
        asked = read(kind, body)
        asked.check_for_batch()
        sampling = asked.sampling()
        if isinstance(asked, CompletionAsked):
            ((where, prompt),) = asked.prompts.items()
            if isinstance(prompt, list):
                check_token_ids(where, prompt, LARGEST + 1)
            return prompt, None, sampling, asked.of_row()
    except FieldError as error:
        raise error.inside("body.") from error
    assert isinstance(asked, ChatAsked)
    return None, asked.messages, sampling, {**asked.of_row(), **asked.of_chat()}
