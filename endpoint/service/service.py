"""Service: what all routes share of one model, its name and limits, its tokenizer, and the backend of its tokens.

Models: the services of one endpoint by the names that requests give them.
"""

import asyncio
from dataclasses import dataclass, replace
from typing import Any

from actors.engine.requests import EngineFacts, Generation
from actors.engine.vocabulary import check_vocabulary
from endpoint.http.errors import ApiError, context_exceeded, model_replaced, wrong
from endpoint.http.origin import Deadline, Origin
from endpoint.requests import params_of, prompts_of
from endpoint.service.backend import Backend, in_time
from endpoint.service.encoder import Encoder
from endpoint.service.metrics import ServingMetrics
from endpoint.service.resumption import Reached
from endpoint.service.served_model import ServiceSettings as ServiceSettings
from pipeline.errors import FieldError, shown_name
from pipeline.requests.asked import Asked, check_num_drafted, num_kept_tokens
from pipeline.requests.token_kinds import check_token_ids
from pipeline.text.chat import AnswerForm, Chat, ChatPrompt
from pipeline.text.codec import TextCodec

_SAFE_SEEDS = 2**53  # the seeds below are those that every JSON reader keeps exactly
_SEND_WHOLE_EVERY_S = 0.5  # for a request that is not streamed, whose tokens are not seen before the end
_FACTS_S = 5.0  # for the engines of one of several models to say what takes them no time


@dataclass(frozen=True)
class Prompt:
    """A prompt as the model reads it."""

    text: str  # "" for a prompt that came as token ids, unless its text is needed
    token_ids: tuple[int, ...]
    chat: ChatPrompt | None = None  # of a chat


@dataclass(frozen=True)
class Call:
    """What comes with a request beside its body."""

    request_id: str
    owner: str  # of the key that it came with
    deadline: Deadline
    origin: Origin


@dataclass(frozen=True)
class PreparedRequest:
    """A request that has passed all checks, ready for the backend."""

    prompts: list[Prompt]
    generation: Generation
    facts: EngineFacts
    call: Call
    form_field: str | None = None  # by which the request asks for a form

    @property
    def form(self) -> AnswerForm:
        """The form of every answer."""
        chat = self.prompts[0].chat
        return AnswerForm() if chat is None else chat.form

    def new_call_id(self, sample: int, index: int) -> str:
        """Return the id of a call in the answer of a sample: the same each time that it is asked for."""
        return self.form.new_call_id(f"{self.generation.request_id}:{sample}:{index}")


class Service:
    """The service of one model in one process. Its callers bound what it waits for (`in_time`)."""

    def __init__(self, settings: ServiceSettings, codec: TextCodec, backend: Backend, metrics: ServingMetrics) -> None:
        self.settings, self.codec, self.backend, self.metrics = settings, codec, backend, metrics
        self._encoder = Encoder(codec)

    async def prepare(self, request: Asked, call: Call) -> PreparedRequest:
        """Check a request against the model and encode its prompts. Raises ApiError.

        Without a seed each prompt gets one of its own, which the answer names.
        """
        async with in_time(call.deadline):
            return await self._prepare(request, call)

    async def _prepare(self, request: Asked, call: Call) -> PreparedRequest:
        if any(Reached(*each).fingerprint != self.settings.fingerprint for each in call.origin.reached.values()):
            raise model_replaced()
        params, by_param, facts = params_of(request), prompts_of(request), await self.backend.facts()
        params = await self._encoder.with_bad_word_ids(params)
        check_vocabulary(params, facts.vocab_size)
        _check_drafts(request, facts)
        if (num_choices := len(by_param) * params.n) > self.settings.max_choices:
            asked = f"The request asks for {num_choices} choices (prompts x n, or x best_of)"
            taken = f"and this server takes at most {self.settings.max_choices}."
            raise ApiError(400, f"{asked}, {taken}", param="n", code="invalid_value")
        keeps = request.truncate_prompt_tokens
        if keeps is not None:
            keeps = num_kept_tokens(keeps, params.max_tokens, facts.max_model_len)
        prompts = [
            await self.encode(param, prompt, needs_text=request.needs_prompt_text, keeps=keeps)
            for param, prompt in by_param.items()
        ]
        for index, (param, prompt) in enumerate(zip(by_param, prompts, strict=True)):
            if request.generates and len(prompt.token_ids) >= facts.max_model_len:
                raise context_exceeded(param, facts.max_model_len, str(len(prompt.token_ids)))
            if prompt.chat is not None:
                params, chat = await self._encoder.with_grammar(params, prompt.chat, request.form_field)
                prompts[index] = replace(prompt, chat=chat)
        generation = Generation(
            request_id=f"{request.id_prefix}{call.request_id}",
            prompts=tuple(prompt.token_ids for prompt in prompts),
            seeds=tuple(
                call.origin.draw(f"seed {number}", _SAFE_SEEDS) if request.seed is None else request.seed
                for number in range(len(prompts))
            ),
            params=params,
            owner=call.owner,
            call=call.origin.call,
            attempt=call.origin.attempt,
            left_s=call.deadline.left_s,
            send_every_s=0.0 if request.stream else _SEND_WHOLE_EVERY_S,
            num_speculative_tokens=request.num_speculative_tokens,
            is_streamed=bool(request.stream),
            shows_special=request.skip_special_tokens is False,
        )
        return PreparedRequest(prompts, generation, facts, call, request.form_field)

    async def encode(
        self, param: str, prompt: str | list[Any] | Chat, *, needs_text: bool = False, keeps: int | None = None
    ) -> Prompt:
        """Encode the prompt in the request field `param`: a text, token ids or a chat. Raises ApiError.

        Token ids are decoded only if `needs_text`. Of a longer prompt only the last `keeps` tokens stay.
        """
        facts, chat = await self.backend.facts(), None
        if isinstance(prompt, list):
            if len(prompt) > facts.max_model_len and keeps is None:
                raise context_exceeded(param, facts.max_model_len, str(len(prompt)))
            check_token_ids(param, prompt, facts.vocab_size)
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
            raise context_exceeded(param, facts.max_model_len, str(len(token_ids)))
        return Prompt(text, tuple(token_ids), chat)

    async def decode(self, param: str, token_ids: list[Any]) -> str:
        """Decode the token ids in the request field `param`, at most as many as the context has. Raises ApiError."""
        facts = await self.backend.facts()
        if len(token_ids) > facts.max_model_len:
            what = f"expected at most {facts.max_model_len} token ids, which is this model's context"
            raise wrong(param, f"{what}, got {len(token_ids)}", "context_length_exceeded")
        check_token_ids(param, token_ids, facts.vocab_size)
        return await self._encoder.decode(token_ids)


def _check_drafts(request: Asked, facts: EngineFacts) -> None:
    """Raise ApiError for wishes about drafts that the engine cannot grant."""
    for name in ("num_speculative_tokens", "include_rejected_drafts"):
        value = getattr(request, name)
        if not facts.controls_drafts and value is not None and value is not False:
            reason = "this server's engine drafts for all requests alike; leave it out"
            raise FieldError(name, reason, is_unsupported=True)
    check_num_drafted(request.num_speculative_tokens, facts.num_speculative_tokens)


class Models:
    """The models that an endpoint serves: its own, which answers requests that name none, and adapters of it."""

    def __init__(self, first: Service, *adapters: Service) -> None:
        """Find each service by the names in its settings, which differ."""
        self.first, self.services = first, (first, *adapters)  # the first one is the endpoint's own model
        self.by_name = {name: service for service in self.services for name in service.settings.names}

    def of(self, name: str | None) -> Service:
        """Return the service that a request names; a request need not name one. Raises ApiError (404)."""
        if name is None:
            return self.first
        service = self.by_name.get(name)
        if service is None:
            names = ", ".join(f"'{shown_name(each, 128)}'" for each in self.by_name)
            message = f"The model '{shown_name(name, 128)}' does not exist. This server has {names}."
            raise ApiError(404, message, param="model", code="model_not_found")
        return service

    async def facts(self) -> list[tuple[str, Service, EngineFacts | None]]:
        """Return each name with its service and what its engines say: None if they say nothing, and another's do.

        Raises what a backend raises if no engine of any model answers.
        """
        asked = (self._facts(service) for service in self.services)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        facts = [None if isinstance(each, BaseException) else each for each in answers]
        if not any(facts):
            return [(name, service, await service.backend.facts()) for name, service in self.by_name.items()]
        by_service = dict(zip(map(id, self.services), facts, strict=True))
        return [(name, service, by_service[id(service)]) for name, service in self.by_name.items()]

    async def _facts(self, service: Service) -> EngineFacts:
        """Return what a service's engines say, in a short time where there are other models to speak of."""
        async with asyncio.timeout(_FACTS_S if len(self.services) > 1 else None):
            return await service.backend.facts()

    async def check_health(self) -> None:
        """Check an engine of each model. Raises what is wrong with one of them."""
        await asyncio.gather(*(service.backend.check_health() for service in self.services))
