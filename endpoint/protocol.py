"""Requests as the OpenAI API has them, checked field by field. What is not supported is refused by name.

https://platform.openai.com/docs/api-reference/completions and .../chat; the extensions have vLLM's names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, model_validator

from decoding.sampling_params import SamplingParams
from endpoint.errors import ApiError
from endpoint.names import shown_name

_LARGEST = 2**31 - 1
_MOST_PROMPTS = 4096
_MOST_MESSAGES = 65_536
_SURROGATE = re.compile("[\ud800-\udfff]")
_MOST_BIASES = 1024  # as vLLM
_MOST_STOPS = 4
_MOST_STOP_CHARACTERS = 1000
# Who asks, what for and how to bill it: nothing that could change the text. Taken, and of no effect.
_NO_EFFECT = frozenset({"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"})
# Of what is not supported, values that ask for nothing.
_ASKS_NOTHING: Mapping[str, tuple[Any, ...]] = {
    "suffix": ("",),
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
}
_UNSUPPORTED = frozenset(
    {*_ASKS_NOTHING, "audio", "prediction", "reasoning_effort", "verbosity", "web_search_options", "moderation"}
)


def _wrong(param: str, message: str) -> ApiError:
    return ApiError(400, f"{param}: {message}", param=param, code="invalid_value")


def unsupported(param: str) -> ApiError:
    """The answer to a field that this server does not know how to honour."""
    return ApiError(
        400, f"{param}: this server does not support it; leave it out", param=param, code="unsupported_parameter"
    )


def _checked_prompt(value: Any) -> Any:
    """One of the four forms, told by the first entry. What token ids hold is looked at where their number is known."""
    if isinstance(value, str):
        _check_text("prompt", value)
        return value
    what = "expected a string, a list of strings, a list of token ids or a list of such lists"
    if not isinstance(value, list):
        raise _wrong("prompt", what)
    if not value:
        raise _wrong("prompt", "the list is empty")
    form = type(value[0])
    if form is int:
        return value
    if form not in (str, list):
        raise _wrong("prompt[0]", what)
    if len(value) > _MOST_PROMPTS:
        raise _wrong("prompt", f"expected at most {_MOST_PROMPTS} prompts, got {len(value)}")
    for index, entry in enumerate(value):
        if type(entry) is not form:
            raise _wrong(f"prompt[{index}]", what)
        if form is str:
            _check_text(f"prompt[{index}]", entry)
        elif not entry:
            raise _wrong(f"prompt[{index}]", "the list is empty")
    return value


def _checked_ids(value: Any) -> Any:
    """A list; what it holds is looked at where its length is known to be bearable."""
    if not isinstance(value, list):
        raise _wrong("tokens", "expected a list")
    return value


def _check_text(param: str, text: str) -> None:
    if not text.isascii() and _SURROGATE.search(text):
        raise _wrong(param, "it holds half a surrogate pair, which is no character")


def _checked_stop(value: Any) -> Any:
    stops = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise _wrong("stop", f"expected a string or a list of at most {_MOST_STOPS} strings")
    if len(stops) > _MOST_STOPS:
        raise _wrong("stop", f"expected at most {_MOST_STOPS} strings, got {len(stops)}")
    for stop in stops:
        _check_text("stop", stop)
        if not 1 <= len(stop) <= _MOST_STOP_CHARACTERS:
            raise _wrong("stop", f"expected strings of 1 to {_MOST_STOP_CHARACTERS} characters, got {len(stop)}")
    return stops


def _checked_bias(value: Any) -> Any:
    if value is None:
        return {}
    what = "expected an object from token ids to numbers from -100 to 100"
    if not isinstance(value, dict):
        raise _wrong("logit_bias", what)
    if len(value) > _MOST_BIASES:
        raise _wrong("logit_bias", f"expected at most {_MOST_BIASES} tokens, got {len(value)}")
    for key, bias in value.items():
        is_id = key.isascii() and key.isdecimal() and len(key) <= len(str(_LARGEST)) and int(key) <= _LARGEST
        is_number = isinstance(bias, int | float) and not isinstance(bias, bool)
        if not is_id or not is_number or not -100 <= bias <= 100:
            raise _wrong("logit_bias", what)
    if len({int(key) for key in value}) < len(value):
        raise _wrong("logit_bias", "it names a token twice (01 is 1)")
    return value


TokenId = Annotated[int, Field(ge=0, le=_LARGEST)]
# Never a union that tries each form: over millions of ids it would keep an error for each and every form.
Prompt = Annotated[
    str | list[str] | list[Any] | list[list[Any]],
    PlainValidator(_checked_prompt, json_schema_input_type=str | list[str] | list[TokenId] | list[list[TokenId]]),
]
TokenIds = Annotated[list[Any], PlainValidator(_checked_ids, json_schema_input_type=list[TokenId])]
Stop = Annotated[list[str], BeforeValidator(_checked_stop)]
LogitBias = Annotated[dict[str, float], BeforeValidator(_checked_bias)]
Number = Annotated[float, Field(allow_inf_nan=False)]


class StreamOptions(BaseModel):
    """Of a streamed answer."""

    model_config = ConfigDict(extra="forbid", strict=True)

    include_usage: bool | None = False
    include_obfuscation: Literal[False] | None = None


class _Request(BaseModel):
    """What completions and chats share."""

    model_config = ConfigDict(extra="forbid", strict=True)
    _own_unsupported: ClassVar[frozenset[str]] = frozenset()

    model: str | None = Field(None, max_length=512)
    temperature: Annotated[Number, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Number, Field(gt=0, le=1)] | None = None
    n: Annotated[int, Field(ge=1, le=4096)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: Stop = []
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    frequency_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    logit_bias: LogitBias = {}

    # Extensions, with vLLM's names.
    top_k: Annotated[int, Field(ge=-1, le=_LARGEST)] | None = None
    min_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[Number, Field(ge=0.01, le=10)] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=128)] | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Field(ge=0, le=_LARGEST)] | None = None
    # And ours: each streamed chunk says which of its text was drafted.
    include_draft_spans: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_what_is_not_supported(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            raise ApiError(400, "The body must be a JSON object.", code="invalid_value")
        known, kept = cls.model_fields, {}
        for name, value in body.items():
            if name in known:
                kept[name] = value
            elif name in _NO_EFFECT or value is None:
                continue
            elif name in _UNSUPPORTED or name in cls._own_unsupported:
                if value not in _ASKS_NOTHING.get(name, ()):
                    raise unsupported(name)
            else:
                shown = shown_name(name)
                raise ApiError(400, f"{shown}: there is no such field", param=shown, code="unknown_parameter")
        return kept

    @model_validator(mode="after")
    def _check_fields_together(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise _wrong("stream_options", "it needs stream to be true")
        if self.include_draft_spans and not self.stream:
            raise _wrong("include_draft_spans", "it needs stream to be true")
        return self

    @property
    def includes_usage(self) -> bool:
        """Whether the stream ends with a chunk of counts."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def _params(self, *, max_tokens: int, num_samples: int, logprobs: int | None) -> SamplingParams:
        """Raises ApiError for what only holds together."""
        given: dict[str, Any] = {
            name: value
            for name in (
                "temperature",
                "top_p",
                "frequency_penalty",
                "presence_penalty",
                "min_p",
                "repetition_penalty",
                "stop_token_ids",
                "ignore_eos",
                "min_tokens",
            )
            if (value := getattr(self, name)) is not None
        }
        try:
            return SamplingParams(
                **given,
                top_k=max(0, self.top_k or 0),
                logit_bias={int(token_id): bias for token_id, bias in self.logit_bias.items()},
                stop=tuple(self.stop),
                max_tokens=max_tokens,
                n=num_samples,
                logprobs=logprobs,
            )
        except ValueError as error:
            message = str(error).removeprefix("sampling.")
            raise _wrong(message.partition(" ")[0], message.partition(" ")[2]) from error


class CompletionRequest(_Request):
    """Body of POST /v1/completions."""

    _own_unsupported: ClassVar[frozenset[str]] = frozenset({"suffix"})

    prompt: Prompt
    max_tokens: Annotated[int, Field(ge=0, le=_LARGEST)] | None = None
    best_of: Annotated[int, Field(ge=1, le=4096)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: bool | None = None

    @model_validator(mode="after")
    def _check_completion(self) -> Self:
        if self.max_tokens == 0 and not self.echo:
            raise _wrong("max_tokens", "0 tokens can be asked for only with echo")
        if self.best_of is not None and self.best_of < self.num_choices:
            raise _wrong("best_of", f"it must not be less than n, which is {self.num_choices}")
        if self.stream and self.num_samples > self.num_choices:
            raise _wrong("best_of", "the best of more samples than n cannot be streamed")
        self.params()
        return self

    @property
    def prompts(self) -> dict[str, str | list[Any]]:
        """Each prompt, a text or token ids, whatever form they came in, by its place in the body."""
        if isinstance(self.prompt, str) or type(self.prompt[0]) is int:
            return {"prompt": self.prompt}
        return {f"prompt[{index}]": prompt for index, prompt in enumerate(self.prompt)}

    @property
    def num_choices(self) -> int:
        """Answers to each prompt."""
        return self.n or 1

    @property
    def num_samples(self) -> int:
        """Samples drawn for each prompt, from which the choices are taken."""
        return self.best_of or self.num_choices

    @property
    def generates(self) -> bool:
        """Whether anything is to be written behind the prompt."""
        return self.max_tokens != 0

    def params(self) -> SamplingParams:
        """What each sample is drawn with. Raises ApiError."""
        logprobs = self.logprobs
        if self.num_samples > self.num_choices:
            logprobs = logprobs or 0  # to tell which is best
        max_tokens = 16 if self.max_tokens is None else max(1, self.max_tokens)
        return self._params(max_tokens=max_tokens, num_samples=self.num_samples, logprobs=logprobs)


class TextPart(BaseModel):
    """A part of a message."""

    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["text"]
    text: str


_MESSAGE_FIELDS = {"role", "content", "name"}
_ROLES = ("system", "developer", "user", "assistant")


def _checked_messages(value: Any) -> Any:
    """Messages whose content is text, as one string each."""
    if not isinstance(value, list) or not value:
        raise _wrong("messages", "expected a list of at least one message")
    if len(value) > _MOST_MESSAGES:
        raise _wrong("messages", f"expected at most {_MOST_MESSAGES} messages, got {len(value)}")
    return [_checked_message(f"messages[{index}]", message) for index, message in enumerate(value)]


def _checked_message(where: str, message: Any) -> dict[str, str]:
    if not isinstance(message, dict):
        raise _wrong(where, "expected an object with role and content")
    for name, value in message.items():
        if name not in _MESSAGE_FIELDS and value not in (None, [], ""):  # as clients send answers back
            shown = shown_name(name)
            raise unsupported(f"{where}.{shown}")
    role = message.get("role")
    if role in ("tool", "function"):
        raise ApiError(
            400,
            f"{where}.role: this server does not support tools",
            param=f"{where}.role",
            code="unsupported_parameter",
        )
    if role not in _ROLES:
        raise _wrong(f"{where}.role", f"expected one of {', '.join(_ROLES)}")
    checked = {"role": str(role), "content": _checked_content(f"{where}.content", message.get("content"))}
    if (name := message.get("name")) is not None:
        if not isinstance(name, str) or not 1 <= len(name) <= 64:
            raise _wrong(f"{where}.name", "expected a string of 1 to 64 characters")
        _check_text(f"{where}.name", name)
        checked["name"] = name
    return checked


def _checked_content(where: str, content: Any) -> str:
    if isinstance(content, str):
        _check_text(where, content)
        return content
    if not isinstance(content, list) or not content:
        raise _wrong(where, "expected a string, or a list of text parts")
    texts = []
    for index, part in enumerate(content):
        place = f"{where}[{index}]"
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise _wrong(place, 'expected an object with type "text" and a text')
        if part["type"] != "text":
            raise ApiError(
                400,
                f"{place}.type: this server takes text only",
                param=f"{place}.type",
                code="unsupported_parameter",
            )
        if not isinstance(part.get("text"), str):
            raise _wrong(f"{place}.text", "expected a string")
        if extra := sorted(part.keys() - {"type", "text"}):
            raise unsupported(f"{place}.{shown_name(extra[0])}")
        _check_text(f"{place}.text", part["text"])
        texts.append(part["text"])
    return "".join(texts)


class ChatMessage(BaseModel):
    """A message; the text parts of its content are joined."""

    model_config = ConfigDict(extra="forbid", strict=True)

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]
    name: str | None = None


def _as_rows(messages: list[ChatMessage]) -> list[dict[str, str]]:
    """A developer's message is a system's: templates know that name."""
    return [
        {**message.model_dump(exclude_none=True), "role": "system" if message.role == "developer" else message.role}
        for message in messages
    ]


class ChatRequest(_Request):
    """Body of POST /v1/chat/completions. Messages that end with the assistant's are continued."""

    messages: Annotated[list[ChatMessage], BeforeValidator(_checked_messages)]
    max_tokens: Annotated[int, Field(ge=1, le=_LARGEST)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=_LARGEST)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    @model_validator(mode="after")
    def _check_chat(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise _wrong("top_logprobs", "it needs logprobs to be true")
        self.params()
        return self

    @property
    def num_choices(self) -> int:
        """Answers."""
        return self.n or 1

    def as_rows(self) -> list[dict[str, str]]:
        """The messages as a row of the offline job has them."""
        return _as_rows(self.messages)

    def params(self) -> SamplingParams:
        """What each sample is drawn with; without a limit, as long as the context. Raises ApiError."""
        limit = self.max_completion_tokens or self.max_tokens or _LARGEST
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        return self._params(max_tokens=limit, num_samples=self.num_choices, logprobs=logprobs)


class TokenizeRequest(BaseModel):
    """Body of POST /tokenize: a prompt, or the messages of a chat."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str | None = Field(None, max_length=512)
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], BeforeValidator(_checked_messages)] | None = None

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise _wrong("prompt", "give a prompt or messages, and not both")
        if self.prompt is not None:
            _check_text("prompt", self.prompt)
        return self

    def as_rows(self) -> list[dict[str, str]]:
        """The messages as a row of the offline job has them."""
        return _as_rows(self.messages or [])


class DetokenizeRequest(BaseModel):
    """Body of POST /detokenize."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str | None = Field(None, max_length=512)
    tokens: TokenIds
