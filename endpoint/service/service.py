"""Service: what all routes share, namely the model's name and limits, its tokenizer, and the backend of its tokens."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from typing import Any

from actors.engine.deadline import Deadline
from actors.engine.requests import EngineFacts, Generation
from decoding.sampling_params import SamplingParams
from endpoint.http.errors import ApiError, context_exceeded, shown_name
from endpoint.requests.fields import check_token_ids, outside_vocabulary, wrong
from endpoint.requests.generation import GenerationRequest
from endpoint.service.backend import Backend, api_errors
from endpoint.service.encoder import Encoder
from endpoint.service.metrics import ServingMetrics
from pipeline.text.answers import AnswerForm
from pipeline.text.chat import Chat, ChatPrompt
from pipeline.text.codec import TextCodec

_SAFE_SEEDS = 2**53  # the seeds below are those that every JSON reader keeps exactly
_SEND_WHOLE_EVERY_S = 0.5  # for a request that is not streamed, whose tokens are not seen before the end


@dataclass(frozen=True, kw_only=True)
class ServiceSettings:
    """What the application says about its model, and how much one request may ask for."""

    model: str | None = None
    """The model's name in requests, which may hold slashes; that of the target's folder unless given."""
    aliases: tuple[str, ...] = ()
    """Other names of the model in requests."""
    max_choices: int = 128
    """Samples that one request may ask for, over all of its prompts."""
    request_timeout_s: float = 600.0
    """Seconds from a request's arrival to its last token, waiting included; then 504."""
    fingerprint: str = ""  # of model and configuration: equal ones write equal texts
    exact: str = ""  # what may be said of the texts, as `exact` in run.json
    warning: str = ""  # of texts that are not the target's; shown with the model
    created: int = field(default_factory=lambda: int(time.time()))  # seconds since 1970

    def __post_init__(self) -> None:
        for name in self.names:
            if not 1 <= len(name) <= 512:
                field = "model" if name == self.model else "aliases"
                raise ValueError(f"serve.{field}: expected a name of 1 to 512 characters, got {name!r}")
        if self.max_choices < 1:
            raise ValueError(f"serve.max_choices must be at least 1, got {self.max_choices}")
        if not self.request_timeout_s > 0:
            raise ValueError(f"serve.request_timeout_s must be above 0 seconds, got {self.request_timeout_s}")

    @property
    def names(self) -> tuple[str, ...]:
        """The names by which a request may call the model, its own first."""
        return self.aliases if self.model is None else (self.model, *self.aliases)


@dataclass(frozen=True)
class Prompt:
    """A prompt as the model reads it."""

    text: str  # "" for a prompt that came as token ids, unless its text is needed
    token_ids: tuple[int, ...]
    chat: ChatPrompt | None = None  # of a chat


@dataclass(frozen=True)
class PreparedRequest:
    """A request that has passed all checks, ready for the backend."""

    prompts: list[Prompt]
    generation: Generation
    facts: EngineFacts

    @property
    def form(self) -> AnswerForm:
        """The form of every answer."""
        chat = self.prompts[0].chat
        return AnswerForm() if chat is None else chat.form

    def new_call_id(self, codec: TextCodec, sample: int, index: int) -> str:
        """Return the id of a call in the answer of a sample: the same each time that it is asked for."""
        return codec.template.family_of_calls.new_id(f"{self.generation.request_id}:{sample}:{index}")


class Service:
    """The service of one process. Whatever it waits for, it waits until a request's deadline at most."""

    def __init__(self, settings: ServiceSettings, codec: TextCodec, backend: Backend, metrics: ServingMetrics) -> None:
        self.settings, self.codec, self.backend, self.metrics = settings, codec, backend, metrics
        self._encoder = Encoder(codec)

    async def prepare(self, request: GenerationRequest, request_id: str, deadline: Deadline) -> PreparedRequest:
        """Check a request against the model and encode its prompts. Raises ApiError.

        Without a seed each prompt gets one of its own, which the answer names.
        """
        self.check_model(request.model)
        params, by_param, facts = request.params(), request.prompts, await self.facts(deadline)
        _check_vocabulary(params, facts.vocab_size)
        if (num_choices := len(by_param) * params.n) > self.settings.max_choices:
            asked = f"The request asks for {num_choices} choices (prompts x n, or x best_of)"
            taken = f"and this server takes at most {self.settings.max_choices}."
            raise ApiError(400, f"{asked}, {taken}", param="n", code="invalid_value")
        keeps = _num_kept(request.truncate_prompt_tokens, params.max_tokens, facts.max_model_len)
        prompts = [
            await self.encode(param, prompt, deadline, needs_text=request.needs_prompt_text, keeps=keeps)
            for param, prompt in by_param.items()
        ]
        for param, prompt in zip(by_param, prompts, strict=True):
            if request.generates and len(prompt.token_ids) >= facts.max_model_len:
                raise _too_long(param, len(prompt.token_ids), facts)
            if prompt.chat is not None:
                with api_errors():
                    async with deadline.enforced():
                        params = await self._encoder.with_grammar(params, prompt.chat)
        generation = Generation(
            request_id=f"{request.id_prefix}{request_id}",
            prompts=tuple(prompt.token_ids for prompt in prompts),
            seeds=tuple(secrets.randbelow(_SAFE_SEEDS) if request.seed is None else request.seed for _ in prompts),
            params=params,
            deadline=deadline,
            send_every_s=0.0 if request.stream else _SEND_WHOLE_EVERY_S,
            is_streamed=bool(request.stream),
            shows_special=request.skip_special_tokens is False,
        )
        return PreparedRequest(prompts, generation, facts)

    async def facts(self, deadline: Deadline) -> EngineFacts:
        """Return the engine's limits and fingerprint. Raises ApiError."""
        with api_errors():
            async with deadline.enforced():
                return await self.backend.facts()

    def check_model(self, name: str | None) -> None:
        """Raise ApiError if a request names another model; a request need not name one."""
        if name is not None and name not in self.settings.names:
            shown = shown_name(name, 128)
            names = ", ".join(f"'{shown_name(each, 128)}'" for each in self.settings.names)
            message = f"The model '{shown}' does not exist. This server has {names}."
            raise ApiError(404, message, param="model", code="model_not_found")

    async def encode(
        self,
        param: str,
        prompt: str | list[Any] | Chat,
        deadline: Deadline,
        *,
        needs_text: bool = False,
        keeps: int | None = None,
    ) -> Prompt:
        """Encode the prompt in the request field `param`: a text, token ids or a chat. Raises ApiError.

        Token ids are decoded only if `needs_text`. Of a longer prompt only the last `keeps` tokens stay.
        """
        facts = await self.facts(deadline)
        if isinstance(prompt, list):
            if len(prompt) > facts.max_model_len and keeps is None:
                raise _too_long(param, len(prompt), facts)
            check_token_ids(param, prompt, facts.vocab_size)
        chat = None
        with api_errors():
            async with deadline.enforced():
                match prompt:
                    case str():
                        text, token_ids = prompt, await self._encoder.encode(param, prompt, facts.max_model_len)
                    case Chat():
                        chat = await self._encoder.encode_chat(prompt, facts.max_model_len)
                        text, token_ids = chat.text, chat.token_ids
                    case _:
                        text, token_ids = await self._encoder.decode(prompt) if needs_text else "", prompt
                if keeps is not None and len(token_ids) > keeps:
                    token_ids = token_ids[-keeps:]
                    text = await self._encoder.decode(token_ids) if needs_text else ""
        if len(token_ids) > facts.max_model_len:
            raise _too_long(param, len(token_ids), facts)
        return Prompt(text, tuple(token_ids), chat)

    async def decode(self, param: str, token_ids: list[Any], deadline: Deadline) -> str:
        """Decode the token ids in the request field `param`, at most as many as the context has. Raises ApiError."""
        facts = await self.facts(deadline)
        if len(token_ids) > facts.max_model_len:
            what = f"expected at most {facts.max_model_len} token ids, which is this model's context"
            raise wrong(param, f"{what}, got {len(token_ids)}", "context_length_exceeded")
        check_token_ids(param, token_ids, facts.vocab_size)
        with api_errors():
            async with deadline.enforced():
                return await self._encoder.decode(token_ids)


def _num_kept(wanted: int | None, max_tokens: int, max_model_len: int) -> int | None:
    """Return how many tokens of a prompt stay; None for all. Raises ApiError for more than the context has."""
    if wanted == -1:
        return max(1, max_model_len - min(max_tokens, max_model_len - 1))
    if wanted is not None and wanted > max_model_len:
        raise wrong("truncate_prompt_tokens", f"expected at most {max_model_len}, which is this model's context")
    return wanted


def _check_vocabulary(params: SamplingParams, vocab_size: int) -> None:
    """Raise ApiError for token ids that the model does not have."""
    for param, token_ids in (("logit_bias", list(params.logit_bias)), ("stop_token_ids", params.stop_token_ids)):
        for token_id in token_ids:
            if token_id >= vocab_size:
                raise outside_vocabulary(param, token_id, vocab_size)


def _too_long(param: str, num_tokens: int, facts: EngineFacts) -> ApiError:
    return context_exceeded(param, facts.max_model_len, str(num_tokens))
