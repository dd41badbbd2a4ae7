"""A sample's text as its tokens come, for any tokens, any split into rounds, any stop strings and any tokenizer."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from actors.deltas import Ending
from actors.translation import output_text
from endpoint.text_stream import TextStream
from endpoint.whole_text import WholeText
from pipeline.stop_strings import StopStrings
from pipeline.text import TextCodec
from tests.endpoint.conftest import BUNDLED
from tests.text_pair import save_byte_fallback_tokenizer, save_tokenizer

STOPS = [(), (" ",), ("the", "one two"), ("ab", "abc", "b"), ("🙂", "é"), ("x" * 30, "\n\n")]
WORDS = ["one", " two", "the", " the", "abc", "🙂", "é", "日本", " ", "\n\n", "xx", "\x00"]
CODECS = ["bundled", "byte_level", "byte_fallback", "metaspace", "word_piece", "end_of_word", "no_fuse"]


def toy(decoder: decoders.Decoder, *tokens: str) -> TextCodec:
    """A codec that knows these tokens and bytes, and writes them with this decoder."""
    names = [*tokens, *(f"<0x{byte:02X}>" for byte in (0x41, 0xC3, 0xA9, 0xF0, 0x9F, 0x99, 0x82, 0xFF))]
    core = Tokenizer(models.BPE({name: index for index, name in enumerate(["<eos>", *names])}, []))
    core.decoder = decoder
    return TextCodec(PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<eos>"))


def make_codec(name: str, folder: Path) -> TextCodec:
    match name:
        case "bundled":
            return TextCodec.load(str(BUNDLED / "target"))
        case "byte_level":
            save_tokenizer(folder)
        case "byte_fallback":
            save_byte_fallback_tokenizer(folder)
        case "metaspace":
            return toy(decoders.Metaspace(), "▁the", "▁", "▁▁", "a", "b", "c", "▁one", "▁two")
        case "word_piece":
            return toy(decoders.WordPiece(), "the", "##a", "b", "##c", ".", "one", "two", "'", "##s")
        case "end_of_word":
            return toy(decoders.BPEDecoder("</w>"), "the</w>", "a", "b</w>", "c", "one</w>", "two</w>")
        case "no_fuse":
            steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Strip(" ", 1, 0)]
            return toy(decoders.Sequence(steps), "▁the", "▁", "▁▁", "a", "b", "c", "▁one", "▁two")
    return TextCodec.load(str(folder))


@pytest.fixture(scope="module", params=CODECS)
def any_codec(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TextCodec:
    return make_codec(request.param, tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> TextCodec:
    return make_codec("byte_level", tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def byte_codec(tmp_path_factory: pytest.TempPathFactory) -> TextCodec:
    return make_codec("byte_fallback", tmp_path_factory.mktemp("tokenizer"))


def ending(stop_reason: str | None) -> Ending:
    return Ending("stop" if stop_reason else "length", stop_reason, None, 0, 1, 0, 0, {})


def outputs(codec: TextCodec, count: int, most: int, seed: int) -> list[list[int]]:
    """Words, characters of several bytes, bytes that are no characters, special tokens, and ids without a token."""
    generator = random.Random(seed)
    words = [ids for word in WORDS if (ids := codec.tokenizer(word, add_special_tokens=False)["input_ids"])]
    words.append([codec.tokenizer.eos_token_id])
    made = []
    for _ in range(count):
        tokens: list[int] = []
        size, few = generator.randrange(1, most + 1), generator.sample(words, min(4, len(words)))
        while len(tokens) < size:
            tokens += (
                generator.choice(few) if generator.random() < 0.7 else [generator.randrange(len(codec.tokenizer) + 2)]
            )
        made.append(tokens[:size])
    return made


def end_of(codec: TextCodec, tokens: list[int], stop: tuple[str, ...]) -> tuple[list[int], str | None]:
    """What is kept of these tokens, and the stop string that ended them."""
    match = StopStrings(codec, stop).find(tokens, 0) if stop else None
    return (tokens[: match[0]], match[1]) if match else (tokens, None)


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("by_token", [True, False])
def test_the_pieces_join_to_the_whole_text_and_never_show_what_is_taken_back(
    any_codec: TextCodec, stop: tuple[str, ...], by_token: bool
) -> None:
    generator = random.Random(1)
    for tokens in outputs(any_codec, 60, most=40, seed=2):
        kept, stop_reason = end_of(any_codec, tokens, stop)
        stream, position, shown = TextStream(any_codec, stop, by_token=by_token), 0, ""
        whole = output_text(any_codec, kept, stop, stop_reason)
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


@pytest.mark.parametrize("stop", [(), ("b", "ab"), ("é", " the", "one")])
def test_every_split_joins_to_the_same_text(any_codec: TextCodec, stop: tuple[str, ...]) -> None:
    for tokens in outputs(any_codec, 40, most=7, seed=3):
        kept, stop_reason = end_of(any_codec, tokens, stop)
        whole = output_text(any_codec, kept, stop, stop_reason)
        for cuts in range(2 ** (len(kept) - 1)):
            borders = [0, *(place + 1 for place in range(len(kept) - 1) if cuts >> place & 1), len(kept)]
            stream = TextStream(any_codec, stop, by_token=bool(cuts % 3))
            pieces = [
                stream.push(kept[first:end], 0, ending(stop_reason) if end == len(kept) else None).text
                for first, end in pairwise(borders)
            ]
            assert "".join(pieces) == whole, (kept, borders)


def test_a_text_that_nobody_watches_is_decoded_once_and_whole(any_codec: TextCodec) -> None:
    for stop in STOPS:
        for tokens in outputs(any_codec, 20, most=20, seed=4):
            kept, stop_reason = end_of(any_codec, tokens, stop)
            text = WholeText(any_codec, stop)
            assert text.push(kept[:3]).text == text.text == ""
            text.push(kept[3:], 0, ending(stop_reason))
            assert text.text == output_text(any_codec, kept, stop, stop_reason)


def test_bytes_are_held_back_until_a_token_ends_their_run(byte_codec: TextCodec) -> None:
    one, two, wrong, the, end = (
        byte_codec.tokenizer.convert_tokens_to_ids(name) for name in ("<0xC3>", "<0xA9>", "<0xFF>", "▁the", "<eos>")
    )
    stream = TextStream(byte_codec)
    assert [stream.push([token_id]).text for token_id in (the, one, two, end, the)] == ["the", "", "", "", "é the"]
    assert [stream.push([token_id]).text for token_id in (one, two, wrong, the)] == [
        "",
        "",
        "",
        "\ufffd\ufffd\ufffd the",
    ]
    assert stream.push([one, two], 2, ending(None)).spans == (("é", True),)


@pytest.mark.parametrize("decoder", [decoders.CTC(), decoders.Sequence([decoders.Fuse(), decoders.Replace("ac", "x")])])
def test_a_tokenizer_whose_ways_are_not_known_shows_its_text_at_the_end(decoder: decoders.Decoder) -> None:
    odd = toy(decoder, "a", "b", "c")
    for tokens in outputs(odd, 20, most=12, seed=5):
        stream = TextStream(odd)
        assert all(stream.push([token_id]).text == "" for token_id in tokens)
        assert stream.push([], 0, ending(None)).text == odd.decode(tokens)


def test_text_comes_as_soon_as_nothing_can_change_it(any_codec: TextCodec) -> None:
    """All tokenizers here but one have whole words, which are there at once."""
    (the,) = any_codec.tokenizer.convert_tokens_to_ids(
        [next(name for name in ("▁the", "the</w>", "the", "h") if name in any_codec.tokenizer.get_vocab())]
    )
    assert TextStream(any_codec).push([the]).text == any_codec.decode([the]) != ""


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
