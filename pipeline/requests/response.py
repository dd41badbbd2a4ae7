"""Body of POST /v1/responses (https://platform.openai.com/docs/api-reference/responses/create). No state is kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pipeline.errors import FieldError
from pipeline.requests.asked import Asked
from pipeline.requests.body import asks
from pipeline.requests.chat import EFFORT
from pipeline.requests.forms import Form
from pipeline.requests.kinds import BOOLEAN, LARGEST, NOTHING, OBJECT, TEXT, anything, integer, options

_OWN = ("tools", "tool_choice", "parallel_tool_calls")
_LIST = {"type": "array", "items": {"type": "object"}}


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
