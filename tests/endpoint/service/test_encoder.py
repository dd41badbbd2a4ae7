"""Prompts on their way to token ids: how much may wait, and what is refused unread."""

import asyncio
import gc
import threading
import tracemalloc
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import httpx2
import pytest

from actors.engine.requests import EngineFacts
from decoding.grammar.structured import Structured
from decoding.sampling_params import SamplingParams
from endpoint.http.errors import ApiError
from endpoint.requests import DetokenizeBody
from endpoint.service.encoder import Encoder
from endpoint.service.metrics import ServingMetrics
from endpoint.service.service import Service, ServiceSettings
from pipeline.requests.body import read
from pipeline.requests.texts import CompletionAsked
from pipeline.text.chat import Chat, ChatPrompt
from pipeline.text.tools.asked import read_tools
from tests.endpoint.in_process import CONTEXT

pytestmark = pytest.mark.anyio


class Codec:
    """A codec that encodes when `may_encode` is set, and remembers the threads in which it decoded."""

    def __init__(self) -> None:
        self.may_encode, self.has_begun = threading.Event(), threading.Event()
        self.threads: list[str] = []

    async def begun(self) -> None:
        await asyncio.to_thread(self.has_begun.wait, 60)

    def encode(self, text: str, is_chat: bool, max_tokens: int | None = None) -> list[int]:
        self.has_begun.set()
        assert self.may_encode.wait(60)
        return [len(text)]

    def chat(self, chat: Chat, max_tokens: int | None = None) -> ChatPrompt:
        return ChatPrompt("", self.encode("", is_chat=True))

    def decode(self, token_ids: Sequence[int]) -> str:
        self.threads.append(threading.current_thread().name)
        return "text"


class Backend:
    """A backend that only knows its facts."""

    is_repeatable = True

    async def facts(self) -> EngineFacts:
        return EngineFacts(96, 300, 3)


@pytest.fixture
def codec() -> Iterator[Codec]:
    codec = Codec()
    yield codec
    codec.may_encode.set()


def service_of(codec: Codec) -> Service:
    return Service(ServiceSettings(model="m"), codec, Backend(), ServingMetrics("m"))  # type: ignore[arg-type]


class Unreadable(list[int]):
    """A list whose length may be read, and whose entries may not."""

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("it is read")


async def test_text_beyond_the_queues_size_is_refused_until_there_is_room(codec):
    encoder = Encoder(codec, max_waiting=5000)  # type: ignore[arg-type]
    first = asyncio.ensure_future(encoder.encode("prompt", "x" * 9000, 96))
    await codec.begun()
    with pytest.raises(ApiError) as caught:
        await encoder.encode("prompt", "x", 96)
    assert (caught.value.status, caught.value.code) == (429, "server_busy")
    assert caught.value.headers == {"Retry-After": "1"}
    codec.may_encode.set()
    assert await first == [9000], "one text alone is never too much"
    assert await asyncio.gather(*(encoder.encode("prompt", "x" * 1000, 96) for _ in range(4))) == [[1000]] * 4


async def test_many_short_texts_fill_the_queue_too(codec):
    encoder = Encoder(codec, max_waiting=5000)  # type: ignore[arg-type]
    asked = [asyncio.ensure_future(encoder.encode("prompt", "x", 96)) for _ in range(9)]
    await codec.begun()
    refused = [task for task in asked if task.done()]
    assert len(refused) == 5
    assert all(isinstance(task.exception(), ApiError) for task in refused)
    codec.may_encode.set()
    await asyncio.gather(*asked, return_exceptions=True)


async def test_a_client_that_leaves_the_queue_makes_room_in_it(codec):
    encoder = Encoder(codec, max_waiting=5000)  # type: ignore[arg-type]
    asked = [asyncio.ensure_future(encoder.encode("prompt", "x", 96)) for _ in range(4)]
    await codec.begun()
    asked[3].cancel()
    await asyncio.wait([asked[3]])
    fifth = asyncio.ensure_future(encoder.encode("prompt", "xx", 96))
    codec.may_encode.set()
    assert await fifth == [2]
    assert await asyncio.gather(*asked[:3]) == [[1]] * 3


class Text(str):
    """Text that can have weak references."""


async def test_a_client_that_leaves_the_queue_leaves_no_text_in_it(codec):
    encoder = Encoder(codec)  # type: ignore[arg-type]
    first = asyncio.ensure_future(encoder.encode("prompt", "x", 96))
    await codec.begun()
    text = Text("y" * 9000)
    seen = weakref.ref(text)
    second = asyncio.ensure_future(encoder.encode("prompt", text, 96))
    del text
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.wait([second])
    del second
    gc.collect()
    assert seen() is None
    codec.may_encode.set()
    assert await first == [1]


async def test_each_message_of_a_chat_counts_even_if_it_is_empty(codec):
    encoder = Encoder(codec, max_waiting=5000)  # type: ignore[arg-type]
    chat = [{"role": "user", "content": "", "name": "n" * 36}] * 40  # 40 x (36 + 64) = 4000
    first = asyncio.ensure_future(encoder.encode_chat(Chat(chat), 96))
    await codec.begun()
    with pytest.raises(ApiError, match="too much text waits"):
        await encoder.encode_chat(Chat([{"role": "user", "content": "x"}] * 16), 96)
    codec.may_encode.set()
    assert (await first).token_ids == [0]


async def test_a_form_and_tools_count_while_their_grammar_waits_to_be_written(codec):
    encoder = Encoder(codec, max_waiting=5000)  # type: ignore[arg-type]
    first = asyncio.ensure_future(encoder.encode("prompt", "x", 96))
    await codec.begun()
    form, plain = SamplingParams(structured=Structured(choice=["y" * 4000])), SamplingParams()
    tools = read_tools([{"type": "function", "function": {"name": "t", "description": "y" * 4000}}])
    for params, asked in ((form, None), (plain, tools)):
        with pytest.raises(ApiError, match="too much text waits"):
            await encoder.with_grammar(params, ChatPrompt("", [1], asked=asked), None)
    small = asyncio.ensure_future(encoder.with_grammar(plain, ChatPrompt("", [1]), None))
    codec.may_encode.set()
    assert await first == [1]
    assert (await small)[0] is plain


def test_token_ids_beyond_the_context_are_counted_and_not_read(codec):
    service = service_of(codec)
    with pytest.raises(ApiError, match="the prompt has 5000"):
        asyncio.run(service.encode("prompt", Unreadable([1] * 5000)))
    with pytest.raises(ApiError, match="expected at most 96 token ids, which is this model's context, got 5000"):
        asyncio.run(service.decode("tokens", Unreadable([1] * 5000)))


def test_token_ids_are_decoded_only_on_request_and_in_the_encoders_thread(codec):
    service = service_of(codec)
    assert asyncio.run(service.encode("prompt", [1, 2])).text == ""
    assert codec.threads == []
    assert asyncio.run(service.encode("prompt", [1, 2], needs_text=True)).text == "text"
    assert asyncio.run(service.decode("tokens", [1, 2])) == "text"
    assert [name.startswith("encoder") for name in codec.threads] == [True, True]


@pytest.mark.parametrize(
    ("body", "form"),
    [
        ({"prompt": [7] * 300_000}, CompletionAsked),
        ({"prompt": [[7] * 300_000]}, CompletionAsked),
        ({"tokens": [7] * 300_000}, DetokenizeBody),
        ({"tokens": [-7] * 300_000}, DetokenizeBody),
        ({"tokens": ["a"] * 300_000}, DetokenizeBody),
    ],
)
def test_the_form_of_a_request_is_recognized_without_memory_for_each_token_id(body, form):
    tracemalloc.start()
    try:
        read(form, body)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("path", ["v1/completions", "v1/chat/completions", "tokenize"])
def test_the_error_for_a_text_that_cannot_fit_shows_its_length_and_not_the_text(server, path):
    text = "marker " * 20_000
    body: dict[str, Any] = {"messages": [{"role": "user", "content": text}]} if "chat" in path else {"prompt": text}
    answer = httpx2.post(f"{server.url}/{path}", json=body)
    longest = max(map(len, server.service.codec.tokenizer.get_vocab()))
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert answer.json()["error"]["param"] == ("messages" if "chat" in path else "prompt")
    assert f"and {CONTEXT} tokens hold at most {CONTEXT * longest}." in answer.json()["error"]["message"]
    assert "marker" not in answer.text


ALTERNATE = "Conversation roles must alternate user/assistant/user/assistant/..."
REFUSED = f"The chat template of this model refuses these messages: {ALTERNATE}"
FAILED = "The chat template of this model failed over these messages."


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (f"{{{{ raise_exception('{ALTERNATE}') }}}}", REFUSED),
        (f'{{{{ raise_exception("{ALTERNATE}") }}}}', REFUSED),
        ("{{ raise_exception(messages[0]['content']) }}", FAILED),
        ("{{ raise_exception('not so: ' ~ messages[0]['content'][:6]) }}", FAILED),
        ("{{ raise_exception('" + "no " * 200 + "') }}", FAILED),
        ("{{ messages[0]['content'].a.b }}", FAILED),
        ("{{ messages[0]['content'] + 1 }}", FAILED),
        ("{% for i in range(10 ** 9) %}{% endfor %}", FAILED),
        ("{{ messages[0]['content'] | tojson(indent='x' * 3, bogus=1) }}", FAILED),
    ],
)
def test_an_error_quotes_a_templates_own_words_and_nothing_else(server, template, expected):
    encoder = Encoder(replace(server.service.codec, chat_template=template))
    with pytest.raises(ApiError) as caught:
        asyncio.run(encoder.encode_chat(Chat([{"role": "user", "content": "marker of a prompt"}]), 96))
    assert (caught.value.status, caught.value.param) == (400, "messages")
    assert caught.value.message == expected
    assert "marker" not in caught.value.message
