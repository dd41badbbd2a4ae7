"""Service: what all routes share of one model, its name and limits, its tokenizer, and the backend of its tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from actors.engine.deadline import Deadline
from actors.engine.requests import EngineFacts, Generation
from decoding.sampling_params import SamplingParams
from endpoint.http.errors import ApiError, context_exceeded
from endpoint.http.retelling import Origin, Telling
from endpoint.requests.fields import check_token_ids, outside_vocabulary, unsupported, wrong
from endpoint.requests.generation import GenerationRequest
from endpoint.service.backend import Backend, api_errors
from endpoint.service.encoder import Encoder
from endpoint.service.metrics import ServingMetrics
from endpoint.service.settings import ServiceSettings as ServiceSettings
from pipeline.text.answers import AnswerForm
from pipeline.text.chat import Chat, ChatPrompt
from pipeline.text.codec import TextCodec

_SAFE_SEEDS = 2**53  # the seeds below are those that every JSON reader keeps exactly
_SEND_WHOLE_EVERY_S = 0.5  # for a request that is not streamed, whose tokens are not seen before the end


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
    created: int  # seconds since 1970
    telling: Telling  # of the gate, as the stream is written
    form_field: str | None = None  # by which the request asks for a form

    @property
    def form(self) -> AnswerForm:
        """The form of every answer."""
        chat = self.prompts[0].chat
        return AnswerForm() if chat is None else chat.form

    def new_call_id(self, codec: TextCodec, sample: int, index: int) -> str:
        """Return the id of a call in the answer of a sample: the same each time that it is asked for."""
        return codec.template.family_of_calls.new_id(f"{self.generation.request_id}:{sample}:{index}")


class Service:
    """The service of one model in one process. Whatever it waits for, it waits until a request's deadline at most."""

    def __init__(self, settings: ServiceSettings, codec: TextCodec, backend: Backend, metrics: ServingMetrics) -> None:
        self.settings, self.codec, self.backend, self.metrics = settings, codec, backend, metrics
        self._encoder = Encoder(codec)

    async def prepare(self, request: GenerationRequest, call: Call) -> PreparedRequest:
        """Check a request against the model and encode its prompts. Raises ApiError.

        Without a seed each prompt gets one of its own, which the answer names.
        """
        deadline, origin = call.deadline, call.origin
        params, by_param, facts = request.params(), request.prompts, await self.facts(deadline)
        with api_errors():
            async with deadline.enforced():
                params = await self._encoder.with_bad_word_ids(params)
        _check_vocabulary(params, facts.vocab_size)
        _check_drafts(request, facts)
        if (num_choices := len(by_param) * params.n) > self.settings.max_choices:
            asked = f"The request asks for {num_choices} choices (prompts x n, or x best_of)"
            taken = f"and this server takes at most {self.settings.max_choices}."
            raise ApiError(400, f"{asked}, {taken}", param="n", code="invalid_value")
        keeps = _num_kept(request.truncate_prompt_tokens, params.max_tokens, facts.max_model_len)
        prompts = [
            await self.encode(param, prompt, deadline, needs_text=request.needs_prompt_text, keeps=keeps)
            for param, prompt in by_param.items()
        ]
        for index, (param, prompt) in enumerate(zip(by_param, prompts, strict=True)):
            if request.generates and len(prompt.token_ids) >= facts.max_model_len:
                raise _too_long(param, len(prompt.token_ids), facts)
            if prompt.chat is not None:
                with api_errors():
                    async with deadline.enforced():
                        params, chat = await self._encoder.with_grammar(params, prompt.chat, request.form_field)
                prompts[index] = replace(prompt, chat=chat)
        generation = Generation(
            request_id=f"{request.id_prefix}{call.request_id}",
            prompts=tuple(prompt.token_ids for prompt in prompts),
            seeds=tuple(
                origin.draw(f"seed {number}", _SAFE_SEEDS) if request.seed is None else request.seed
                for number in range(len(prompts))
            ),
            params=params,
            owner=call.owner,
            deadline=deadline,
            send_every_s=0.0 if request.stream else _SEND_WHOLE_EVERY_S,
            num_speculative_tokens=request.num_speculative_tokens,
            is_streamed=bool(request.stream),
            shows_special=request.skip_special_tokens is False,
            told=tuple(deltas for told in origin.earlier() for deltas in told),
            call=origin.call,
            attempt=origin.attempt,
        )
        can_go_on = origin.keeps and bool(request.stream) and self.backend.is_repeatable
        return PreparedRequest(prompts, generation, facts, origin.created, Telling(is_on=can_go_on), request.form_field)

    async def facts(self, deadline: Deadline) -> EngineFacts:
        """Return the engine's limits and fingerprint. Raises ApiError."""
        with api_errors():
            async with deadline.enforced():
                return await self.backend.facts()

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
    named = {
        "logit_bias": params.logit_bias,
        "stop_token_ids": params.stop_token_ids,
        "allowed_token_ids": params.allowed_token_ids or (),
        "bad_words": chain.from_iterable(params.bad_word_ids),
    }
    for param, token_ids in named.items():
        for token_id in token_ids:
            if token_id >= vocab_size:
                raise outside_vocabulary(param, token_id, vocab_size)


def _check_drafts(request: GenerationRequest, facts: EngineFacts) -> None:
    """Raise ApiError for wishes about drafts that the engine cannot grant."""
    limit = request.num_speculative_tokens
    if not facts.controls_drafts:
        for name, is_asked in (
            ("num_speculative_tokens", limit is not None),
            ("include_rejected_drafts", bool(request.include_rejected_drafts)),
        ):
            if is_asked:
                raise unsupported(name, "this server's engine drafts for all requests alike; leave it out")
    if limit is not None and limit > facts.num_speculative_tokens:
        most = f"this server drafts at most {facts.num_speculative_tokens} tokens in a round"
        raise wrong("num_speculative_tokens", f"{most}, got {limit}; ask for fewer, or leave it out")


def _too_long(param: str, num_tokens: int, facts: EngineFacts) -> ApiError:
    return context_exceeded(param, facts.max_model_len, str(num_tokens))
