"""A sample's text as its tokens come, for any tokens, any split into rounds and any stop strings."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from actors.deltas import Ending
from actors.translation import output_text
from endpoint.text_stream import TextStream
from pipeline.stop_strings import StopStrings
from pipeline.text import TextCodec
from tests.text_pair import save_tokenizer

STOPS = [(), (" ",), ("the", "one two"), ("ab", "abc", "b"), ("🙂", "é"), ("x" * 30, "\n\n")]


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> TextCodec:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder)
    return TextCodec.load(str(folder))


def ending(stop_reason: str | None) -> Ending:
    return Ending("stop" if stop_reason else "length", stop_reason, None, 0, 1, 0, 0, {})


def outputs(codec: TextCodec, count: int, seed: int) -> list[list[int]]:
    """Words, characters of several bytes, bytes that are no characters, and special tokens."""
    generator = random.Random(seed)
    words = ["one", " two", "the", "abc", "🙂", "é", "日本", " ", "\n\n", "xx", "<|end|>"]
    made = []
    for _ in range(count):
        tokens: list[int] = []
        for _ in range(generator.randrange(1, 25)):
            word = codec.tokenizer(generator.choice(words), add_special_tokens=False)["input_ids"]
            tokens += word if generator.random() < 0.8 else [generator.randrange(len(codec.tokenizer))]
        made.append(tokens)
    return made


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("by_token", [True, False])
def test_the_pieces_join_to_the_whole_text_and_never_show_what_is_taken_back(
    codec: TextCodec, stop: tuple[str, ...], by_token: bool
) -> None:
    generator, num_stopped = random.Random(1), 0
    for tokens in outputs(codec, 150, seed=2):
        match = StopStrings(codec, stop).find(tokens, 0) if stop else None
        kept, stop_reason = (tokens[: match[0]], match[1]) if match else (tokens, None)
        num_stopped += match is not None
        stream, position, shown = TextStream(codec, stop, by_token=by_token), 0, ""
        whole = output_text(codec, kept, stop, stop_reason)
        while position < len(kept):
            size = generator.randrange(1, 6)
            new, position = kept[position : position + size], position + size
            last = ending(stop_reason) if position >= len(kept) else None
            piece = stream.push(new, generator.randrange(len(new) + 1), last)
            shown += piece.text
            assert whole.startswith(shown)
            assert "".join(text for text, _ in piece.spans) == piece.text
            assert len(piece.offsets) == (len(new) if by_token else 0)
            if not stop:
                assert last or not piece.text.endswith("\ufffd"), "half a character was shown"
        assert shown == whole == stream.text
    assert num_stopped or not stop or stop[0].startswith("x")


def test_an_ending_without_tokens_brings_what_was_held_back(codec: TextCodec) -> None:
    stream = TextStream(codec, ("one two three",))
    tokens = codec.encode("a one two", is_chat=True)
    assert stream.push(tokens).text == "a "
    assert stream.push([], 0, ending(None)).text == "one two"


def test_spans_say_which_tokens_were_drafted(codec: TextCodec) -> None:
    one, two, end = (codec.encode(text, is_chat=True) for text in ("one", "two", "!"))
    stream = TextStream(codec)
    assert stream.push([*one, *two], len(one)).spans == (("one", True), ("two", False))
    assert stream.push([*one, *end], len(one) + len(end)).spans == (("one!", True),)


def test_offsets_are_where_each_token_begins(codec: TextCodec) -> None:
    stream, text = TextStream(codec), "one🙂two"
    tokens = codec.encode(text, is_chat=True)
    offsets = [*stream.push(tokens[:2]).offsets, *stream.push(tokens[2:]).offsets]
    assert offsets == [len(codec.decode(tokens[:n]).rstrip("\ufffd")) for n in range(len(tokens))]
