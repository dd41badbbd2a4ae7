"""A text that cannot be written in `max_tokens` tokens is refused before it is tokenized, and no other is."""

import random
import unicodedata
from dataclasses import replace
from typing import Any

import pytest
from tokenizers import Tokenizer, normalizers

from pipeline.errors import LongTextError, TemplateError
from pipeline.text.codec import TextCodec
from pipeline.text.tokenizer import TextLength
from tests.pipeline.made_up import chat_prompt

WORDS = [
    "the",
    " cat",
    " sat on the mat",
    "über",
    "日本語",
    "🙂",
    " ",
    "\n",
    "x",
    "e\u0301",
    "\u1100\u1161\u11a8",
    "<|end|>",
]


def composing(codec: TextCodec) -> TextCodec:
    """Return the codec with a normalizer that composes several characters into one."""
    core = Tokenizer.from_str(codec.tokenizer.backend_tokenizer.to_str())
    core.normalizer = normalizers.NFC()
    return replace(codec, tokenizer=codec.tokenizer.__class__(tokenizer_object=core))


@pytest.fixture(params=["codec", "space_dropping_codec", "composing"])
def any_codec(request: pytest.FixtureRequest) -> TextCodec:
    if request.param == "composing":
        return composing(request.getfixturevalue("codec"))
    codec: TextCodec = request.getfixturevalue(request.param)
    return codec


def test_a_text_that_fits_is_never_refused_as_too_long(any_codec):
    generator = random.Random(1)
    for _ in range(300):
        few = generator.sample(WORDS, 2)
        text = "".join(generator.choice(few) for _ in range(generator.randrange(1, 60)))
        token_ids = any_codec.encode(text, is_chat=True)
        assert any_codec.encode(text, is_chat=True, max_tokens=len(token_ids)) == token_ids


def test_the_length_is_that_of_the_normalized_text(codec):
    text = unicodedata.normalize("NFD", "각" * 400)
    token_ids = composing(codec).encode(text, is_chat=True)
    longest = max(map(len, codec.tokenizer.get_vocab()))
    assert len(text) == 1200
    assert composing(codec).encode(text, is_chat=True, max_tokens=400 // longest + 1) == token_ids
    with pytest.raises(LongTextError):
        codec.encode(text, is_chat=True, max_tokens=400 // longest + 1)


@pytest.mark.parametrize("as_chat", [False, True])
def test_a_text_that_is_too_long_is_not_tokenized(codec, as_chat):
    tokenizer, text = codec.tokenizer, "the cat" * 1000

    class Watched:
        added_tokens_decoder, all_special_tokens = tokenizer.added_tokens_decoder, tokenizer.all_special_tokens
        apply_chat_template, get_vocab = tokenizer.apply_chat_template, tokenizer.get_vocab

        def __call__(self, text: str, **options: Any) -> dict[str, list[int]]:
            raise AssertionError("it is tokenized")

    def encode(codec: TextCodec) -> None:
        if as_chat:
            chat_prompt(codec, [{"role": "user", "content": text}], max_tokens=9)
        codec.encode(text, is_chat=False, max_tokens=9)

    longest = max(map(len, tokenizer.get_vocab()))
    with pytest.raises(LongTextError, match=f"; 9 tokens hold at most {9 * longest}") as caught:
        encode(replace(codec, tokenizer=Watched()))
    assert caught.value.num_characters >= len(text)
    assert "cat" not in caught.value.message


class Untouchable:
    """A normalizer that must not be called."""

    def normalize_str(self, text: str) -> str:
        raise AssertionError("it is normalized")


def test_a_text_that_is_far_too_long_is_not_even_normalized(codec):
    class Watched:
        get_vocab = codec.tokenizer.get_vocab

        class backend_tokenizer:
            normalizer = Untouchable()

    length, max_characters = TextLength(Watched()), 9 * max(map(len, codec.tokenizer.get_vocab()))
    with pytest.raises(LongTextError):
        length.check("x" * (4 * max_characters + 1), 9)
    with pytest.raises(AssertionError, match="it is normalized"):
        length.check("x" * (4 * max_characters), 9)
    length.check("x" * max_characters, 9)


def test_messages_that_are_far_too_long_are_neither_masked_nor_rendered(codec):
    max_characters = 9 * max(map(len, codec.tokenizer.get_vocab()))
    unread = replace(codec, chat_template="{{ raise_exception('it is rendered') }}")
    halves = [{"role": "user", "content": "<" * (2 * max_characters)}] * 2
    with pytest.raises(TemplateError):
        chat_prompt(unread, halves, max_tokens=9)
    with pytest.raises(LongTextError):
        chat_prompt(unread, [*halves, {"role": "user", "content": "x"}], max_tokens=9)
