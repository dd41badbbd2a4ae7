"""Service: what all routes share. The model's name and limits, its tokenizer, and where tokens come from."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from actors.engine.deadline import NO_DEADLINE, Deadline, DeadlineError
from actors.engine.requests import EngineFacts, Generation
from decoding.sampling_params import SamplingParams
from endpoint.http.errors import ApiError, context_exceeded
from endpoint.http.shown_name import shown_name
from endpoint.requests.token_ids import check_token_ids, outside_vocabulary
from endpoint.service.backend import Backend, as_api_error, ask_facts
from endpoint.service.encoder import Encoder
from endpoint.service.meter import Meter, NoMeter
from pipeline.text.codec import TextCodec

_SAFE_SEEDS = 2**53  # those that every JSON reader keeps whole
_TELL_WHOLE_EVERY_S = 0.5  # what a request that is not streamed has written: nobody sees it before the end


@dataclass(frozen=True, kw_only=True)
class ServiceSettings:
    """What the application says of its model, and how much it takes on."""

    model: str = ""
    """The model's name in requests, which may hold slashes; that of the target's folder unless given."""
    aliases: tuple[str, ...] = ()
    """Other names of the model in requests."""
    max_choices: int = 128
    """Samples that one request may ask for, over all of its prompts."""
    request_timeout_s: float | None = 600.0
    """Seconds from a request's arrival to its last token, waiting included; then 504."""
    owned_by: str = "dray"
    fingerprint: str = ""  # of model and configuration: equal ones write equal texts
    created: int = field(default_factory=lambda: int(time.time()))  # seconds since 1970

    def __post_init__(self) -> None:
        """Check every field."""
        for name in (self.model, *self.aliases):
            if len(name) > 512 or (not name and name != self.model):
                raise ValueError(f"serve.model: expected a name of 1 to 512 characters, got {name!r}")
        if self.max_choices < 1:
            raise ValueError(f"serve.max_choices must be at least 1, got {self.max_choices}")
        if self.request_timeout_s is not None and not self.request_timeout_s > 0:
            raise ValueError(f"serve.request_timeout_s must be above 0 seconds, got {self.request_timeout_s}")


@dataclass(frozen=True)
class Prompt:
    """As the model reads it."""

    text: str  # "" for token ids whose text nobody wants
    token_ids: tuple[int, ...]


class Service:
    """One for a process."""

    def __init__(
        self,
        settings: ServiceSettings,
        codec: TextCodec,
        backend: Backend,
        new_meter: Callable[[], Meter] = NoMeter,
    ) -> None:
        """`new_meter` makes what follows a request to generate."""
        self.settings, self.codec, self.backend, self.new_meter = settings, codec, backend, new_meter
        self._facts: list[EngineFacts] = []  # once they are known
        self._deadline = NO_DEADLINE
        self._encoder = Encoder(codec)

    def until(self, deadline: Deadline) -> Service:
        """The same service for one request: whatever is waited for, here or for an engine, is waited for until then."""
        service = copy(self)
        service._deadline = deadline
        return service

    async def facts(self) -> EngineFacts:
        """Of the engine."""
        if not self._facts:
            self._facts.append(await ask_facts(self.backend, self._deadline))
        return self._facts[0]

    def check_model(self, name: str | None) -> None:
        """Raise ApiError if a request names another model; to name none is fine, since there is one."""
        if name is not None and name not in (self.settings.model, *self.settings.aliases):
            raise unknown_model(name)

    async def encode(self, param: str, prompt: str | list[Any], *, has_text: bool = False) -> Prompt:
        """A prompt of the request field `param`, a text or token ids. Raises ApiError.

        The text of token ids is made only if it is to be had.
        """
        facts = await self.facts()
        if isinstance(prompt, str):
            async with self._in_time():
                token_ids = await self._encoder.encode(param, prompt, facts.max_model_len)
            if len(token_ids) > facts.max_model_len:
                raise too_long(param, len(token_ids), facts.max_model_len)
            return Prompt(prompt, tuple(token_ids))
        if len(prompt) > facts.max_model_len:
            raise too_long(param, len(prompt), facts.max_model_len)
        check_token_ids(param, prompt, facts.vocab_size)
        async with self._in_time():
            return Prompt(await self._encoder.decode(prompt) if has_text else "", tuple(prompt))

    async def encode_chat(self, messages: list[dict[str, str]]) -> Prompt:
        """The messages through the chat template. Raises ApiError."""
        max_model_len = (await self.facts()).max_model_len
        async with self._in_time():
            text, token_ids = await self._encoder.encode_chat(messages, max_model_len)
        if len(token_ids) > max_model_len:
            raise too_long("messages", len(token_ids), max_model_len)
        return Prompt(text, tuple(token_ids))

    async def decode(self, param: str, token_ids: list[Any]) -> str:
        """The text of token ids of the request field `param`, at most as many as the context. Raises ApiError."""
        facts = await self.facts()
        if len(token_ids) > facts.max_model_len:
            raise ApiError(
                400,
                f"{param}: expected at most {facts.max_model_len} token ids, which is this model's context, "
                f"got {len(token_ids)}",
                param=param,
                code="context_length_exceeded",
            )
        check_token_ids(param, token_ids, facts.vocab_size)
        async with self._in_time():
            return await self._encoder.decode(token_ids)

    def generation(
        self, request_id: str, prompts: list[Prompt], params: SamplingParams, seed: int | None, *, is_streamed: bool
    ) -> Generation:
        """What to ask the backend. Without a seed each prompt gets one of its own, which the answer names."""
        self.check_num_choices(len(prompts), params)
        seeds = tuple(secrets.randbelow(_SAFE_SEEDS) if seed is None else seed for _ in prompts)
        return Generation(
            request_id=request_id,
            prompts=tuple(prompt.token_ids for prompt in prompts),
            seeds=seeds,
            params=params,
            deadline=self._deadline,
            tell_every_s=0.0 if is_streamed else _TELL_WHOLE_EVERY_S,
        )

    def check_num_choices(self, num_prompts: int, params: SamplingParams) -> None:
        """Raise ApiError for more than one request may ask for; worth asking before the prompts are encoded."""
        num_sequences = num_prompts * params.n
        if num_sequences > self.settings.max_choices:
            raise ApiError(
                400,
                f"The request asks for {num_sequences} choices (prompts x n, or x best_of), and this server takes at "
                f"most {self.settings.max_choices}.",
                param="n",
                code="invalid_value",
            )

    async def check_params(self, params: SamplingParams) -> None:
        """Raise ApiError for token ids that the model does not have."""
        vocab_size = (await self.facts()).vocab_size
        for param, token_ids in (("logit_bias", list(params.logit_bias)), ("stop_token_ids", params.stop_token_ids)):
            for token_id in token_ids:
                if token_id >= vocab_size:
                    raise outside_vocabulary(param, token_id, vocab_size)

    @asynccontextmanager
    async def _in_time(self) -> AsyncIterator[None]:
        """What the block awaits is given up when time is up. Raises ApiError then."""
        try:
            async with self._deadline.enforced():
                yield
        except DeadlineError as error:
            raise as_api_error(error) from error


def unknown_model(name: str) -> ApiError:
    """The answer to a name that no model has."""
    return ApiError(404, f"The model '{shown_name(name, 128)}' does not exist.", param="model", code="model_not_found")


def too_long(param: str, num_tokens: int, max_model_len: int) -> ApiError:
    """The answer to a prompt that leaves no room for output."""
    return context_exceeded(param, max_model_len, str(num_tokens))
