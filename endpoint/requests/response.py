"""Body of POST /v1/responses (https://platform.openai.com/docs/api-reference/responses/create). No state is kept."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, PlainValidator, model_validator

from decoding.sampling_params import SamplingParams
from endpoint.http.errors import ApiError
from endpoint.requests.fields import LARGEST, Strict, field_error, unsupported, wrong
from endpoint.requests.generation import GenerationRequest
from endpoint.requests.response_items import messages_of
from pipeline.errors import FieldError
from pipeline.text.chat import Chat
from pipeline.text.tools.asked import ToolsAsked, read_tools

_FUNCTION = {"name", "description", "parameters", "strict"}
_Input = Annotated[Any, PlainValidator(lambda value: value, json_schema_input_type=str | list[dict[str, Any]])]
_Tools = Annotated[Any, PlainValidator(lambda value: value, json_schema_input_type=list[dict[str, Any]] | None)]
_Choice = Annotated[Any, PlainValidator(lambda value: value, json_schema_input_type=str | dict[str, Any] | None)]


class TextOptions(Strict):
    """What the text must be."""

    format: dict[str, Any] | None = None
    verbosity: None = None


class ReasoningOptions(Strict):
    """How much a model thinks."""

    effort: Annotated[str, Field(max_length=64)] | None = None
    summary: None = None
    generate_summary: None = None


class ResponseRequest(GenerationRequest):
    """Body of POST /v1/responses."""

    id_prefix: ClassVar[str] = "resp_"
    _own_unsupported: ClassVar[frozenset[str]] = frozenset(
        {"previous_response_id", "conversation", "background", "include", "truncation", "prompt", "max_tool_calls"}
        | {"top_logprobs", "prompt_cache_retention", "context_management"}
    )
    _own_empty_values: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "background": (False,),
        "include": ([],),
        "truncation": ("disabled",),
        "top_logprobs": (0,),
    }
    _others: ClassVar[tuple[str, ...]] = (
        "n",
        "response_format",
        "return_token_ids",
        "include_draft_spans",
        "include_rejected_drafts",
        "prompt_logprobs",
    )

    input: _Input
    instructions: str | None = None
    tools: _Tools = None
    tool_choice: _Choice = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    max_output_tokens: Annotated[int, Field(ge=1, le=LARGEST)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _check_response(self) -> Self:
        for name in self._others:
            if getattr(self, name) is not None:
                raise unsupported(name)
        if self.includes_usage:
            raise unsupported("stream_options.include_usage", "the last event has the usage in any case; leave it out")
        self.chat()
        self.params()
        return self

    @cached_property
    def asked(self) -> ToolsAsked | None:
        """The functions that may be called; None without any. Raises ApiError."""
        tools = self.tools
        if isinstance(tools, list):
            tools = [_as_in_chats(tool) for tool in tools]
        choice = _as_in_chats(self.tool_choice)
        try:
            return read_tools(tools, choice, self.parallel_tool_calls)
        except FieldError as error:
            where = error.where.replace(".function", "", 1)  # a function's fields are the tool's own here
            raise field_error(FieldError(where, error.reason, is_unsupported=error.is_unsupported)) from error

    def chat(self) -> Chat:
        """Return the chat that is to be rendered; a new message begins. Raises ApiError."""
        return Chat(
            messages_of(self.input, self.instructions),
            self.asked,
            options=self.chat_template_kwargs or {},
            effort=self.reasoning.effort if self.reasoning else None,
            effort_field="reasoning.effort",
            begins=True,
        )

    @property
    def prompts(self) -> dict[str, Chat]:
        """The one prompt, under the name of the field with its messages."""
        return {"input": self.chat()}

    def params(self) -> SamplingParams:
        """Return what the answer is drawn with; without a limit it may fill the context. Raises ApiError."""
        form = self._chats_format()
        body = self if form is None else self.model_copy(update={"response_format": form})
        limit = self.max_output_tokens or LARGEST
        try:
            return GenerationRequest._params(body, max_tokens=limit, num_samples=1, logprobs=None)
        except ApiError as error:
            if form is None or not (error.param or "").startswith("response_format"):
                raise
            where = str(error.param).replace("response_format.json_schema", "text.format")
            where = where.replace("response_format", "text.format")
            raise wrong(where, error.message.partition(": ")[2]) from error

    @property
    def form_field(self) -> str | None:
        """The path of the field that says what form the output has; None without a form."""
        form = self._chats_format()
        return None if form is None else "text.format.schema" if form["type"] == "json_schema" else "text.format"

    def _chats_format(self) -> dict[str, Any] | None:
        """Return `text.format` as `response_format` has it. Raises ApiError."""
        form = self.text.format if self.text else None
        if form is None or form.get("type") == "text":
            return None
        if form.get("type") == "json_object":
            return form
        if form.get("type") != "json_schema":
            raise wrong("text.format.type", "expected text, json_object or json_schema")
        if not isinstance(form.get("schema"), dict):
            raise wrong("text.format.schema", "expected a JSON Schema, an object")
        return {"type": "json_schema", "json_schema": {name: each for name, each in form.items() if name != "type"}}


def _as_in_chats(value: Any) -> Any:
    """Return a tool, or the choice of one, as chats have it: the fields of its function one level deeper."""
    if not isinstance(value, dict) or value.get("type") != "function":
        return value
    rest = {name: each for name, each in value.items() if name not in _FUNCTION}
    return {**rest, "function": {name: each for name, each in value.items() if name in _FUNCTION}}
