"""POST /v1/completions: prompts in, texts out. POST /v1/chat/completions: messages in, the assistant's next one out."""

import asyncio
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from actors.engine.deltas import Delta
from actors.engine.translation import mean_logprob
from decoding.sequence import TokenLogprobs
from endpoint.answers.choices import Choice, Growth, draft_fields
from endpoint.answers.logprobs import chat_logprobs, completion_logprobs, is_next_token, known_deltas, score_prompts
from endpoint.answers.text import TextStream
from endpoint.answers.writer import Form, Writer
from endpoint.service.service import Call, PreparedRequest, Prompt, Service
from pipeline.requests.texts import ChatAsked, CompletionAsked
from pipeline.text.answer_parts import Arguments, CallBegins, Content, Event, Reasoning, shown_call
from pipeline.text.chat import AnswerReader
from pipeline.text.codec import TextCodec


async def complete(service: Service, request: CompletionAsked, call: Call) -> Response:
    """Return the answer. Raises ApiError."""
    prepared = await service.prepare(request, call)
    shows_scores = bool(request.echo) and request.logprobs is not None
    scores: Seq[Seq[TokenLogprobs]] | None = None
    known: list[Delta] = []
    if shows_scores or request.prompt_logprobs is not None:
        num_top = max((request.logprobs or 0) if shows_scores else 0, request.prompt_logprobs or 0)
        has_ranks = request.prompt_logprobs is not None
        has_next = is_next_token(prepared.generation)
        found = await score_prompts(service, prepared, num_top, has_ranks=has_ranks, has_next=has_next)
        scores, known = known_deltas(prepared.generation, found, prepared.facts)
    echoes = await _echoes(service, request, prepared, scores)
    form = _CompletionForm(request, service.codec, echoes)
    return await Writer(service, request, prepared, form, scores, known).response()


@dataclass(frozen=True)
class _Echo:
    """A prompt as the answer shows it in front of its choices; empty unless the request asks for it."""

    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs | None, ...] = ()
    offsets: tuple[int, ...] = ()


async def _echoes(
    service: Service,
    request: CompletionAsked,
    prepared: PreparedRequest,
    scores: Seq[Seq[TokenLogprobs]] | None,
) -> list[_Echo]:
    """Return the echo of each prompt, whose tokens have these scores."""
    if not request.echo:
        return [_Echo() for _ in prepared.prompts]
    if request.logprobs is None or scores is None:
        return [_Echo(prompt.text) for prompt in prepared.prompts]

    def scored(prompt: Prompt, logprobs: Seq[TokenLogprobs]) -> _Echo:
        offsets = TextStream(service.codec).push(prompt.token_ids).offsets
        return _Echo(prompt.text, prompt.token_ids, (None, *logprobs), offsets)

    return [
        await asyncio.to_thread(scored, prompt, logprobs)
        for prompt, logprobs in zip(prepared.prompts, scores, strict=True)
    ]


class _CompletionForm(Form):
    """Choices as texts, each behind the echo of its prompt."""

    whole_object = chunk_object = "text_completion"
    has_prompts = True

    def __init__(self, request: CompletionAsked, codec: TextCodec, echoes: list[_Echo]) -> None:
        self._request, self._codec, self._echoes = request, codec, echoes
        self.needs_offsets = request.logprobs is not None

    def content(self, choice: Choice) -> dict[str, Any]:
        return {"text": self._echo(choice).text + choice.text}

    def logprobs(self, choice: Choice) -> dict[str, Any] | None:
        return self._logprobs(choice, 0, has_echo=True)

    def empty_chunk(self, choice: Choice) -> dict[str, Any]:
        return {"index": choice.index, "text": "", "logprobs": None, "finish_reason": None}

    def selected(self, choices: list[Choice]) -> list[Choice]:
        """Return the best of each prompt's samples: those whose tokens are the likeliest on average."""
        num_samples, num_choices = self._request.num_samples, self._request.num_choices
        if num_samples == num_choices:
            return choices
        best: list[Choice] = []
        for first in range(0, len(choices), num_samples):
            samples = choices[first : first + num_samples]
            best += sorted(samples, key=lambda choice: -mean_logprob(choice.logprobs))[:num_choices]
        return best

    def chunks(self, growth: Growth) -> list[dict[str, Any]]:
        """Return one chunk, or none if there is nothing to show."""
        request, choice, piece = self._request, growth.choice, growth.piece
        is_silent = not piece.text and choice.ending is None
        if is_silent and request.logprobs is None and not request.include_draft_spans:
            return []
        is_first, choice.has_begun = not choice.has_begun, True
        echo = self._echo(choice).text if is_first else ""
        first_token = 0 if is_first else len(choice.token_ids) - len(growth.delta.token_ids)
        chunk: dict[str, Any] = {
            "index": choice.index,
            "text": echo + piece.text,
            "logprobs": self._logprobs(choice, first_token, has_echo=is_first),
            "finish_reason": choice.finish_reason,
        }
        if choice.ending is not None:
            chunk |= {"stop_reason": choice.stop_reason, "seed": choice.seed}
        if request.include_draft_spans:
            chunk |= draft_fields(growth, echo)
        return [chunk]

    def _echo(self, choice: Choice) -> _Echo:
        return self._echoes[choice.index // self._request.num_samples]

    def _logprobs(self, choice: Choice, first: int, *, has_echo: bool) -> dict[str, Any] | None:
        """Return the log-probabilities of a choice's tokens from `first` on, behind those of its echo."""
        if self._request.logprobs is None:
            return None
        echo = self._echo(choice)
        before = echo if has_echo else _Echo()
        offsets = [len(echo.text) + offset for offset in choice.offsets[first:]]
        return completion_logprobs(
            self._codec,
            [*before.token_ids, *choice.token_ids[first:]],
            [*before.logprobs, *choice.logprobs[first:]],
            [*before.offsets, *offsets],
            self._request.logprobs,
        )


async def chat(service: Service, request: ChatAsked, call: Call) -> Response:
    """Return the answer. Raises ApiError."""
    prepared = await service.prepare(request, call)
    num_top, scores = request.prompt_logprobs, None
    if num_top is not None:
        scores = await score_prompts(service, prepared, num_top, has_ranks=True)
    return await Writer(service, request, prepared, _ChatForm(request, service.codec, prepared), scores).response()


class _ChatForm(Form):
    """Choices as messages, or as changes of messages."""

    whole_object, chunk_object = "chat.completion", "chat.completion.chunk"

    def __init__(self, request: ChatAsked, codec: TextCodec, prepared: PreparedRequest) -> None:
        self._request, self._codec, self._prepared, self._form = request, codec, prepared, prepared.form

    def content(self, choice: Choice) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
        if not self._form.is_plain:
            choice.answer = answer = self._form.read(choice.text)
            message["content"] = answer.content if answer.reasoning or answer.calls else answer.content or ""
            if self._form.tags is not None:
                message["reasoning"] = answer.reasoning
            if answer.calls:
                calls = enumerate(answer.calls)
                message["tool_calls"] = [shown_call(self._id(choice, i), c.name, c.arguments) for i, c in calls]
        return {"message": message}

    def finish_reason(self, choice: Choice) -> str | None:
        """Return why a choice has ended: with calls of tools, or as its sample did."""
        return "tool_calls" if choice.answer.calls and choice.finish_reason == "stop" else choice.finish_reason

    def logprobs(self, choice: Choice) -> dict[str, Any] | None:
        if not self._request.logprobs:
            return None
        return chat_logprobs(self._codec, choice.token_ids, choice.logprobs)

    def chunks(self, growth: Growth) -> list[dict[str, Any]]:
        """Return first the role, then what was read, and at last the reason why the choice ended."""
        request, choice, chunks = self._request, growth.choice, []
        if not choice.has_begun:
            choice.has_begun = True
            chunks.append(_chunk(choice, {"role": "assistant", "content": "", "refusal": None}))
        changes = self._changes(growth)
        if not changes and growth.delta.token_ids and (request.logprobs or request.include_draft_spans):
            changes = [{"content": ""}]
        own = [_chunk(choice, change) for change in changes]
        if own and request.logprobs:
            own[0]["logprobs"] = chat_logprobs(self._codec, growth.delta.token_ids, growth.delta.logprobs)
        if own and request.include_draft_spans:
            own[0] |= draft_fields(growth)
        chunks += own
        if choice.ending is not None:
            end = {"finish_reason": self.finish_reason(choice), "stop_reason": choice.stop_reason, "seed": choice.seed}
            chunks.append({**_chunk(choice, {}), **end})
        return chunks

    def empty_chunk(self, choice: Choice) -> dict[str, Any]:
        return _chunk(choice, {"content": ""})

    def _changes(self, growth: Growth) -> list[dict[str, Any]]:
        choice, text = growth.choice, growth.piece.text
        if self._form.is_plain:
            return [{"content": text}] if text else []
        choice.reader = reader = choice.reader or AnswerReader(self._form)
        return [self._change(choice, event) for event in growth.read_by(reader)]

    def _change(self, choice: Choice, event: Event) -> dict[str, Any]:
        choice.answer.add([event])
        index = len(choice.answer.calls) - 1
        match event:
            case Reasoning(text):
                return {"reasoning": text}
            case Content(text):
                return {"content": text}
            case CallBegins(name):
                return {"tool_calls": [{"index": index, **shown_call(self._id(choice, index), name, "")}]}
            case Arguments(text):
                return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}

    def _id(self, choice: Choice, index: int) -> str:
        return self._prepared.new_call_id(choice.index, index)


def _chunk(choice: Choice, delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": choice.index, "delta": delta, "logprobs": None, "finish_reason": None}
