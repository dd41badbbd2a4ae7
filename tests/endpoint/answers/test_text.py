"""A sample's text as its tokens come, for any tokens, any split into rounds, any stop strings and any tokenizer."""

import random
from collections.abc import Sequence
from itertools import pairwise, product
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from actors.engine.deltas import Ending
from actors.engine.translation import ended_text
from endpoint.answers.text import Span, TextStream, warn_of_late_text
from pipeline.text.codec import TextCodec
from pipeline.text.text_behind import IncrementalDecoder, StopStrings
from tests.endpoint.in_process import BUNDLED
from tests.text_pair import save_byte_fallback_tokenizer, save_tokenizer

STOPS = [(), (" ",), ("the", "one two"), ("ab", "abc", "b"), ("🙂", "é"), ("x" * 30, "\n\n")]
WORDS = ["one", " two", "the", " the", "abc", "🙂", "é", "日本", " ", "\n\n", "xx", "\x00"]
CODECS = ["bundled", "byte_level", "byte_fallback", "metaspace", "word_piece", "end_of_word", "no_fuse", "spaced"]


def toy(decoder: decoders.Decoder | None, *tokens: str) -> TextCodec:
    """A codec that knows these tokens and bytes, and writes them with this decoder."""
    names = [*tokens, *(f"<0x{byte:02X}>" for byte in (0x41, 0xC3, 0xA9, 0xF0, 0x9F, 0x99, 0x82, 0xFF))]
    core = Tokenizer(models.BPE({name: index for index, name in enumerate(["<eos>", *names])}, []))
    if decoder is not None:
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
        case "spaced":
            return toy(None, "the", "a", "b", "c", "one", "two")
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
    return Ending("stop" if stop_reason else "length", stop_reason, None, 0)


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
            is_word = generator.random() < 0.7
            tokens += generator.choice(few) if is_word else [generator.randrange(len(codec.tokenizer) + 2)]
        made.append(tokens[:size])
    return made


def end_of(
    codec: TextCodec, prompt: list[int], tokens: list[int], stop: tuple[str, ...]
) -> tuple[list[int], str | None]:
    """Return the tokens up to the stop string that ends them, and that string."""
    match = StopStrings(codec, stop, prompt).find(tokens, 0) if stop else None
    return (tokens[: match[0]], match[1]) if match else (tokens, None)


def rounds_of(
    codec: TextCodec, prompt: list[int], tokens: list[int], stop: tuple[str, ...], generator: random.Random
) -> tuple[list[list[int]], str | None]:
    """The tokens as rounds write them, up to the stop string that is found in one, and that string."""
    finder, rounds, position = StopStrings(codec, stop, prompt), list[list[int]](), 0
    while position < len(tokens):
        end = min(len(tokens), position + generator.randrange(1, 6))
        match = finder.find(tokens[:end], position)
        if match is not None:
            return [*rounds, tokens[position : match[0]]], match[1]
        rounds.append(tokens[position:end])
        position = end
    return rounds, None


@pytest.mark.parametrize("by_token", [True, False])
def test_pieces_join_to_the_whole_text_and_nothing_shown_is_taken_back(any_codec, by_token):
    generator, num_stopped = random.Random(1), 0
    prompts = [[], *outputs(any_codec, 59, most=20, seed=12)]
    for stop, (prompt, tokens) in product(STOPS, zip(prompts, outputs(any_codec, 60, most=40, seed=2), strict=True)):
        rounds, stop_reason = rounds_of(any_codec, prompt, tokens, stop, generator)
        num_stopped += stop_reason is not None
        stream, shown = TextStream(any_codec, stop, prompt, by_token=by_token), ""
        whole = ended_text(any_codec, prompt, [token_id for new in rounds for token_id in new], stop, None, stop_reason)
        for number, new in enumerate(rounds, start=1):
            last = ending(stop_reason) if number == len(rounds) else None
            piece = stream.push(new, generator.randrange(len(new) + 1), last)
            shown += piece.text
            assert whole.startswith(shown)
            assert "".join(text for text, *_ in piece.spans) == piece.text
            assert len(piece.offsets) == (len(new) if by_token else 0)
        assert shown == whole == stream.text
    assert num_stopped > 20, "stop strings stop"


@pytest.mark.parametrize("stop", [(), ("b", "ab"), ("é", " the", "one")])
def test_every_split_joins_to_the_same_text(any_codec, stop):
    prompts = [[], *outputs(any_codec, 39, most=6, seed=13)]
    for prompt, tokens in zip(prompts, outputs(any_codec, 40, most=7, seed=3), strict=True):
        kept, stop_reason = end_of(any_codec, prompt, tokens, stop)
        whole = ended_text(any_codec, prompt, kept, stop, None, stop_reason)
        for cuts in range(2 ** (len(kept) - 1)):
            borders = [0, *(place + 1 for place in range(len(kept) - 1) if cuts >> place & 1), len(kept)]
            stream = TextStream(any_codec, stop, prompt, by_token=bool(cuts % 3))
            pieces = [
                stream.push(kept[first:end], 0, ending(stop_reason) if end == len(kept) else None).text
                for first, end in pairwise(borders)
            ]
            assert "".join(pieces) == whole, (prompt, kept, borders)


def test_a_whole_text_is_decoded_once(any_codec):
    for stop in STOPS:
        for tokens in outputs(any_codec, 20, most=20, seed=4):
            kept, stop_reason = end_of(any_codec, tokens[:4], tokens, stop)
            text = TextStream(any_codec, stop, tokens[:4], is_streamed=False)
            assert text.push(kept[:3]).text == text.text == ""
            text.push(kept[3:], 0, ending(stop_reason))
            assert text.text == ended_text(any_codec, tokens[:4], kept, stop, None, stop_reason)


def test_bytes_are_held_back_until_a_token_ends_their_run(byte_codec):
    one, two, wrong, the, end = (
        byte_codec.tokenizer.convert_tokens_to_ids(name) for name in ("<0xC3>", "<0xA9>", "<0xFF>", "▁the", "<eos>")
    )
    stream = TextStream(byte_codec)
    assert [stream.push([token_id]).text for token_id in (the, one, two, end, the)] == ["the", "", "", "", "é the"]
    shown = [stream.push([token_id]).text for token_id in (one, two, wrong, the)]
    assert shown == ["", "", "", "\ufffd\ufffd\ufffd the"]
    assert stream.push([one, two], 2, ending(None)).spans == (Span("é", True),)


def test_bytes_that_a_word_completes_keep_their_own_span(byte_codec):
    the, one, two = byte_codec.tokenizer.convert_tokens_to_ids(["▁the", "<0xC3>", "<0xA9>"])
    tokens = [the, one, two, the]
    for drafted, spans in (
        (3, (Span("theé", True), Span(" the", False))),
        (1, (Span("the", True), Span("é the", False))),
    ):
        piece = TextStream(byte_codec).push(tokens, drafted)
        assert (piece.spans, piece.offsets) == (spans, (0, 3, 3, 4))
    stream = TextStream(byte_codec)
    pieces = [stream.push([token_id], int(token_id == two)) for token_id in tokens]
    assert pieces[-1].spans == (Span("é", True), Span(" the", False))
    assert [piece.offsets for piece in pieces] == [(0,), (3,), (3,), (4,)]


def test_a_token_that_completes_text_begins_where_that_text_ends(any_codec):
    for tokens in outputs(any_codec, 60, most=30, seed=6):
        stream = TextStream(any_codec)
        offsets = [*stream.push(tokens[:9]).offsets, *stream.push(tokens[9:]).offsets]
        texts = [any_codec.decode(tokens[:number]) for number in range(len(tokens) + 1)]
        assert offsets == sorted(offsets)
        for number, token_id in enumerate(tokens):
            half = texts[number].endswith("\ufffd")
            is_split = half and len(texts[number + 1]) < len(texts[number]) + len(any_codec.decode([token_id]))
            if any_codec.decoder_rules.settles(token_id):
                assert offsets[number] == len(texts[number]) - is_split, (tokens, number)


@pytest.mark.parametrize("by_token", [True, False])
@pytest.mark.parametrize("size", [1, 3])
def test_invalid_bytes_are_decoded_only_a_few_times_each(codec, by_token, size):
    vocabulary, num_decoded, decode = codec.tokenizer.get_vocab().values(), 0, TextCodec.decode
    wrong = next(token_id for token_id in vocabulary if codec.token_bytes(token_id) == b"\x80")

    class Counting(TextCodec):
        def decode(self, token_ids: Sequence[int]) -> str:
            nonlocal num_decoded
            num_decoded += len(token_ids)
            return decode(self, token_ids)

    stream = TextStream(Counting(codec.tokenizer), by_token=by_token)
    assert "".join(stream.push([wrong] * size).text for _ in range(300)) == "\ufffd" * (300 * size - 1)
    assert num_decoded <= 10 * 300 * size
    assert stream.push([], 0, ending(None)).text == "\ufffd"


@pytest.mark.parametrize("decoder", [decoders.CTC(), decoders.Sequence([decoders.Fuse(), decoders.Replace("ac", "x")])])
def test_an_unknown_tokenizer_shows_its_text_at_the_end(decoder, codec, caplog):
    odd = toy(decoder, "a", "b", "c")
    warn_of_late_text(codec)
    assert caplog.messages == []
    warn_of_late_text(odd)
    assert [message.partition(" tokenizer=")[0] for message in caplog.messages] == ["streamed text comes at the end"]
    for tokens in outputs(odd, 20, most=12, seed=5):
        stream = TextStream(odd)
        assert all(stream.push([token_id]).text == "" for token_id in tokens)
        assert stream.push([], 0, ending(None)).text == odd.decode(tokens)


def test_text_is_shown_as_soon_as_nothing_can_change_it(any_codec):
    """All tokenizers here but one have whole words, which are there at once."""
    (the,) = any_codec.tokenizer.convert_tokens_to_ids(
        [next(name for name in ("▁the", "the</w>", "the", "h") if name in any_codec.tokenizer.get_vocab())]
    )
    assert TextStream(any_codec).push([the]).text == any_codec.decode([the]) != ""


def test_an_ending_without_tokens_shows_the_text_that_was_held_back(codec):
    stream = TextStream(codec, ("one two three",))
    assert stream.push(codec.encode("a one two", is_chat=True)).text == "a "
    assert stream.push([], 0, ending(None)).text == "one two"


def test_spans_say_which_tokens_were_drafted(codec):
    one, two, end = (codec.encode(text, is_chat=True) for text in ("one", "two", "!"))
    stream = TextStream(codec)
    assert stream.push([*one, *two], len(one)).spans == (Span("one", True), Span("two", False))
    assert stream.push([*one, *end], len(one) + len(end)).spans == (Span("one!", True),)


def test_a_span_has_the_text_that_was_drafted_in_its_place(codec):
    one, two, three = (codec.encode(text, is_chat=True) for text in ("one", " two", " é🙂"))
    end = codec.tokenizer.eos_token_id
    stream = TextStream(codec, shows_rejected=True)
    assert stream.push(two[:1], 0, rejected=[*three, end]).spans[0].rejected == " é🙂" + codec.tokenizer.eos_token
    assert stream.push([*one, two[0]], len(one), rejected=three[:-1]).spans == (
        Span("one", True),
        Span(codec.decode(two[:1]), False, codec.decode([*one, *three[:-1]])[3:]),
    )
    assert stream.push([end], 0, ending(None), rejected=one).spans == (Span("", False, "one"),)
    assert TextStream(codec).push(two[:1], 0, rejected=three).spans[0].rejected == "", (
        "rejected tokens are shown only where a request asks for them"
    )


def test_a_preview_adds_nothing_and_is_the_text_that_would_follow(any_codec):
    for tokens in outputs(any_codec, 40, most=24, seed=8):
        for first in (0, 1, len(tokens) // 2):
            decoder, without = IncrementalDecoder(any_codec), IncrementalDecoder(any_codec)
            shown, expected = decoder.push(tokens[:first]), without.push(tokens[:first])
            preview = decoder.preview(tokens[first:])
            whole, before = (any_codec.of_all_tokens.decode(tokens[:end]) for end in (None, first))
            if whole.startswith(before):
                assert preview == whole[len(before) :]
            assert shown + decoder.push(tokens[first:]) == expected + without.push(tokens[first:])


def test_a_draft_that_was_replaced_is_shown_with_text_that_was_held_back(codec):
    one, two = (codec.encode(text, is_chat=True) for text in ("one", " two"))
    stream = TextStream(codec, ("one two three",), shows_rejected=True)
    assert stream.push(one[:-1] + one[-1:], len(one) - 1, rejected=two).text == ""
    shown = stream.push(two, 0, ending(None), rejected=one)
    assert "".join(span.text for span in shown.spans) == shown.text == "one two"
    assert [span.rejected for span in shown.spans if span.rejected] == [" two", "one"]


def test_a_stop_string_of_replacement_characters_is_not_shown(codec):
    vocabulary = codec.tokenizer.get_vocab().values()
    a, wrong, b = (next(i for i in vocabulary if codec.token_bytes(i) == byte) for byte in (b"a", b"\x80", b"b"))
    stop, tokens = ("a\ufffd\ufffd",), [b, a, wrong, wrong, wrong, b]
    assert StopStrings(codec, stop).find(tokens, 5) == (6, stop[0])
    stream = TextStream(codec, stop)
    assert [stream.push([token_id]).text for token_id in tokens[:-1]] == ["b", "", "", "", ""]
    assert stream.push(tokens[-1:], 0, ending(stop[0])).text == ""
