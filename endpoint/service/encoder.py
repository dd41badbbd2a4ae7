"""Encoder: the tokenizer in a thread of its own, behind a bounded queue, so that a long text delays no other work."""

import asyncio
import json
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Any, TypeVar

from actors.engine.answer_grammar import with_answer_grammar
from actors.engine.vocabulary import with_bad_word_ids
from decoding.sampling_params import SamplingParams
from endpoint.http.errors import ApiError, context_exceeded, server_busy, wrong
from pipeline.errors import FieldError, LongTextError, RowError, TemplateError
from pipeline.text.chat import Chat, ChatPrompt
from pipeline.text.codec import TextCodec

_MAX_WAITING = 32 * 2**20  # characters and token ids in the queue
_MIN_SIZE = 1024  # even the shortest text counts as so much
_MESSAGE_SIZE = 64  # added to the text of each message of a chat
_Result = TypeVar("_Result")


class Encoder:
    """Texts to token ids and back. Every method raises ApiError (429) when too much text is in the queue already."""

    def __init__(self, codec: TextCodec, max_waiting: int = _MAX_WAITING) -> None:
        """Let at most `max_waiting` characters (or ids) be in the queue and in work; a single text may always be."""
        self._codec, self._max_waiting = codec, max_waiting
        self._size, self._sizing = 0, Lock()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="encoder")

    async def encode(self, param: str, text: str, max_model_len: int) -> list[int]:
        """Return the token ids of a plain prompt, the request field `param`; 400 if it cannot fit the context."""
        try:
            return await self._run(len(text), lambda: self._codec.encode(text, is_chat=False, max_tokens=max_model_len))
        except RowError as error:
            raise _refusal(error, param, max_model_len) from error

    async def encode_chat(self, chat: Chat, max_model_len: int) -> ChatPrompt:
        """Return what the chat template writes for a chat; 400 if it refuses or the prompt cannot fit the context."""
        size = sum(_characters_of(message) + _MESSAGE_SIZE for message in chat.messages)
        size += chat.num_characters_of_tools
        try:
            return await self._run(size, lambda: self._codec.chat(chat, max_tokens=max_model_len))
        except RowError as error:
            has_tools = bool(chat.num_characters_of_tools)
            raise _refusal(error, "messages", max_model_len, has_tools=has_tools) from error

    async def with_grammar(
        self, params: SamplingParams, prompt: ChatPrompt, form_field: str | None
    ) -> tuple[SamplingParams, ChatPrompt]:
        """Return what `with_answer_grammar` returns; 400 for what a grammar cannot hold.

        `form_field` is the path of the field by which the request asks for a form.
        """
        size = 0 if params.structured is None else len(params.structured.key)
        size += 0 if prompt.asked is None else prompt.asked.num_characters
        try:
            return await self._run(size, lambda: with_answer_grammar(params, prompt, self._codec))
        except FieldError as error:
            if error.where.startswith("sampling.structured") and form_field is not None:
                raise wrong(form_field, error.reason) from error
            raise wrong(error.where, error.reason, error.code) from error

    async def with_bad_word_ids(self, params: SamplingParams) -> SamplingParams:
        """Return the parameters with token ids for the texts of bad words; 400 for a text that has none."""
        if not params.bad_words:
            return params
        try:
            return await self._run(sum(map(len, params.bad_words)), lambda: with_bad_word_ids(params, self._codec))
        except ValueError as error:
            param, _, message = str(error).removeprefix("sampling.").partition(" ")
            raise wrong(param, message) from error

    async def decode(self, token_ids: Seq[int]) -> str:
        """Return the text of token ids without special tokens."""
        return await self._run(len(token_ids), lambda: self._codec.decode(token_ids))

    async def _run(self, size: int, work: Callable[[], _Result]) -> _Result:
        """Run work on a text or ids of that size in the thread, when its turn comes."""
        size = max(size, _MIN_SIZE)
        with self._sizing:
            if self._size and self._size + size > self._max_waiting:
                raise server_busy("too much text waits to be read already")
            self._size += size

        waiting = [work]

        def done(_: Future[_Result]) -> None:  # in either thread; after a cancellation only if the work had not begun
            waiting.clear()  # the thread's queue would keep cancelled work, and so its text, until its turn comes
            with self._sizing:
                self._size -= size

        future = self._thread.submit(lambda: waiting.pop()())
        future.add_done_callback(done)
        del work
        return await asyncio.wrap_future(future)


def _characters_of(message: Any) -> int:
    """Return about how many characters of a message, which is not checked yet, the template may write."""
    if not isinstance(message, Mapping):
        return 0
    return sum(
        len(each if isinstance(each, str) else json.dumps(each, ensure_ascii=False)) for each in message.values()
    )


def _refusal(error: RowError, param: str, max_model_len: int, *, has_tools: bool = False) -> ApiError:
    match error:
        case FieldError():
            return wrong(error.where, error.reason, error.code)
        case LongTextError():
            tools = " with its tools" if has_tools else ""
            length = f"{error.num_characters} characters{tools}, and {max_model_len} tokens hold at most"
            return context_exceeded(param, max_model_len, f"{length} {error.max_characters}")
        case TemplateError(reason=None):
            message = "The chat template of this model failed over these messages."
        case TemplateError():
            message = f"The chat template of this model refuses these messages: {error.reason}"
        case _:
            message = error.message
    return ApiError(400, message, param=param, code="invalid_value")
