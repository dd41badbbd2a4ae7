"""TextCodec, IncrementalDecoder and StopStrings: prompts, tokens and text."""

import random
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from pipeline.errors import RowError
from pipeline.text.codec import TextCodec
from pipeline.text.text_behind import IncrementalDecoder, StopStrings
from tests.pipeline.made_up import input_row

TEXT = "the cat sat, über Käse 日本語 🙂 stop the cat"


def chat(*messages: Any, **values: Any) -> Any:
    return input_row(prompt=None, messages=list(messages), **values)


USER = {"role": "user", "content": "hi", "name": None}
ASSISTANT = {"role": "assistant", "content": "so"}
PART = {"type": "text", "text": "h", "image_url": None}


ARGUMENTS = r"\.tool_calls\[0\]\.function\.arguments"


def _call(arguments: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "arguments": arguments}}


def test_a_plain_prompt_is_unchanged_and_has_no_system_prompt(codec):
    assert replace(codec, system_prompt="be kind").prompt(input_row(prompt=" {x} "))[0] == " {x} "


def test_messages_go_through_the_chat_template(codec):
    with_system = replace(codec, system_prompt="be kind")
    assert codec.prompt(chat(USER))[0] == "<|user|>hi<|end|><|assistant|>"
    assert with_system.prompt(chat(USER))[0] == "<|system|>be kind<|end|><|user|>hi<|end|><|assistant|>"
    own = {"role": "system", "content": "own"}
    assert with_system.prompt(chat(own, USER))[0] == "<|system|>own<|end|><|user|>hi<|end|><|assistant|>"


def test_template_variables_come_from_columns(codec):
    moody = replace(codec, template_columns={"mood": "state"})
    assert moody.prompt(chat(USER, columns={"state": "glad"}))[0].endswith("<|assistant|>glad")
    with pytest.raises(RowError, match=r"no column \['state'\]"):
        moody.prompt(chat(USER))


@pytest.mark.parametrize(
    ("messages", "message"),
    [  # tests/endpoint/requests/bad_chats.py has what JSON can say
        ([{"role": b"user", "content": "x"}], r"role: expected a word, .*, got b'user'"),
        ([{**USER, "at": datetime(2020, 1, 2)}], r"messages\[0\].at: JSON has no value of the type datetime"),
        ([{**USER, "x": {"y": [1, float("inf")]}}], r"messages\[0\].x.y\[1\]: inf is no number that JSON can say"),
        ([{**USER, "x": {1: "y"}}], r"messages\[0\].x: the name of a field is 1; JSON has strings only"),
        ([{**USER, "content": b"x"}], r"messages\[0\].content: JSON has no value of the type bytes"),
        ([{**ASSISTANT, "tool_calls": [_call('{"a": [1e400]}')]}], rf"messages\[0\]{ARGUMENTS}: expected JSON text of"),
        ([{**ASSISTANT, "tool_calls": [_call({"a": float("inf")})]}], rf"messages\[0\]{ARGUMENTS}\.a: inf is no"),
        ([{"role": "user", "content": "\ud800"}], "half a surrogate pair"),
    ],
)
def test_messages_of_the_wrong_shape_fail_their_row(codec, messages, message):
    with pytest.raises(RowError, match=message) as caught:
        codec.prompt(chat(*messages))
    assert caught.value.stage == "template"


def test_an_error_raised_by_a_template_fails_its_row_with_the_templates_message(codec):
    with pytest.raises(RowError, match="the chat template failed: roles must alternate"):
        replace(codec, chat_template="{{ raise_exception('roles must alternate') }}").prompt(chat(USER))
    with pytest.raises(RowError, match="no chat template"):
        replace(codec, chat_template=None).prompt(chat(USER))


def test_a_chat_templates_special_tokens_become_one_token_each(codec):
    token_ids = codec.encode("<|user|>the<|end|>", is_chat=True)
    assert [token_ids[0], token_ids[-1]] == codec.tokenizer.convert_tokens_to_ids(["<|user|>", "<|end|>"])
    assert codec.decode(token_ids) == "the"


def test_a_plain_prompt_gets_the_tokenizers_own_special_tokens_and_a_chat_does_not(codec):
    bos = codec.tokenizer.bos_token_id
    assert codec.encode("the", is_chat=False) == [bos, *codec.encode("the", is_chat=True)]
    assert bos not in codec.encode("the", is_chat=True)


@pytest.mark.parametrize("is_chat", [True, False])
def test_a_prompt_without_tokens_fails_its_row(codec, is_chat):
    with pytest.raises(RowError, match="the prompt is empty") as caught:
        codec.encode("", is_chat)
    assert caught.value.stage == "encode"


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(
        ValueError,
        match=r"^no tokenizer in .* \(looked for tokenizer\.json, .*\); put one there, or set models\.tokenizer to .*$",
    ):
        TextCodec.load(str(tmp_path))


BAD_TOKENIZERS = {
    "not JSON": ({"tokenizer.json": "damaged"}, ""),
    "an empty one": ({"tokenizer.json": '{"model": {}, "added_tokens": []}'}, ""),
    "code of its own": ({"tokenizer_config.json": '{"auto_map": {"AutoTokenizer": ["mine.Mine", null]}}'}, "auto_map"),
    "a missing package": ({"tokenizer_config.json": '{"tokenizer_class": "BioGptTokenizer"}'}, "sacremoses"),
}


@pytest.mark.parametrize("name", BAD_TOKENIZERS)
def test_a_tokenizer_that_cannot_be_loaded_is_told_in_one_line(tmp_path, name):
    files, reason = BAD_TOKENIZERS[name]
    vocabulary = {"vocab.json": '{"a": 0}', "merges.txt": "#version: 0.2\n", "config.json": "{}"}
    for file, content in {**vocabulary, **files}.items():
        (tmp_path / file).write_text(content)
    with pytest.raises(ValueError, match=f"^cannot load a tokenizer from {tmp_path}: .*{reason}") as caught:
        TextCodec.load(str(tmp_path))
    assert "\n" not in str(caught.value)
    assert "trust_remote_code" not in str(caught.value)


def test_a_chat_template_may_mark_its_generations_as_transformers_allows(tokenizer_path):
    marked = "{% generation %}{{ messages[0].content }}{% endgeneration %}"
    assert TextCodec.load(str(tokenizer_path), chat_template=marked).prompt(chat(USER))[0] == "hi"


TAKEN = "add_generation_prompt continue_final_message tokenize chat_template conversation messages tools documents"


@pytest.mark.parametrize("name", TAKEN.split())
def test_a_template_variable_with_a_reserved_name_is_refused_at_load(tokenizer_path, name):
    with pytest.raises(ValueError, match=rf"template_kwargs names \['{name}'\]"):
        TextCodec.load(str(tokenizer_path), template_kwargs={name: True, "mood": "x"})


def test_tools_may_come_from_a_column_but_messages_may_not(tokenizer_path):
    codec = TextCodec.load(str(tokenizer_path), "{{ tools[0].name }}", template_columns={"tools": "functions"})
    assert codec.prompt(chat(USER, columns={"functions": [{"name": "add"}]}))[0] == "add"
    with pytest.raises(ValueError, match=r"template_columns names \['messages'\]"):
        TextCodec.load(str(tokenizer_path), template_columns={"messages": "turns"})


def _token_sequences(codec: TextCodec, num_sequences: int, seed: int) -> list[list[int]]:
    """Encoded text, and random tokens: special ones, lone spaces, and bytes.

    Where every byte stands for itself, also bytes that are no characters; a tokenizer with bytes as a
    fallback reads a wrong byte as the ruin of its neighbours, so there only whole characters.
    """
    generator = random.Random(seed)
    sequences = [codec.encode(TEXT, is_chat=True), codec.encode("🙂" * 20, is_chat=True)]
    pieces = [[token_id] for token_id in range(len(codec.tokenizer))]
    if "<0x00>" in codec.tokenizer.get_vocab():
        pieces = [[token_id] for token_id in range(1, 13)]
        pieces += [_bytewise(codec, character) for character in "🙂🙃é語日"] * 2
    for _ in range(num_sequences):
        length = generator.randrange(1, 40)
        few = generator.sample(pieces, 6)
        sequences.append([token_id for _ in range(length) for token_id in generator.choice(few)])
    return sequences


@pytest.fixture(params=["codec", "space_dropping_codec"])
def any_codec(request: pytest.FixtureRequest) -> TextCodec:
    codec: TextCodec = request.getfixturevalue(request.param)
    return codec


def test_incremental_decoding_equals_whole_decoding_for_any_split(any_codec):
    generator = random.Random(0)
    for token_ids in _token_sequences(any_codec, 150, seed=1):
        decoder = IncrementalDecoder(any_codec)
        pieces, position = [], 0
        while position < len(token_ids):
            step = generator.randrange(1, 5)
            pieces.append(decoder.push(token_ids[position : position + step]))
            position += step
        pieces.append(decoder.flush())
        assert "".join(pieces) == any_codec.decode(token_ids)


def test_no_piece_ends_within_a_character(codec):
    decoder = IncrementalDecoder(codec)
    text = TEXT + " ñ → 🙃"
    pieces = [decoder.push([token_id]) for token_id in codec.encode(text, is_chat=True)]
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)
    assert "" in pieces  # some character does take several tokens


def _first_stop(codec: TextCodec, token_ids: list[int], stop: tuple[str, ...]) -> int | None:
    """Return the number of tokens to keep, found the slow way: the first prefix whose text holds a stop string."""
    for num_kept in range(1, len(token_ids) + 1):
        text = codec.decode(token_ids[:num_kept]).rstrip("\ufffd")
        if any(string in text for string in stop):
            return num_kept
    return None


@pytest.mark.parametrize(
    "stop", [("stop",), ("t",), (" the cat", "語 "), ("🙂",), ("🙂🙂🙂", "b"), ("é", "ü", "sat, ")]
)
def test_stop_strings_are_found_for_any_split_in_tokens_and_rounds(any_codec, stop):
    generator = random.Random(2)
    num_found = 0
    for token_ids in _token_sequences(any_codec, 60, seed=3):
        stop_strings = StopStrings(any_codec, stop)
        expected, found, num_checked = _first_stop(any_codec, token_ids, stop), None, 0
        while num_checked < len(token_ids) and found is None:
            num_tokens = min(len(token_ids), num_checked + generator.randrange(1, 6))
            found = stop_strings.find(token_ids[:num_tokens], num_checked)
            num_checked = num_tokens
        assert (found and found[0]) == expected
        if found is not None:
            num_found += 1
            text = stop_strings.cut(token_ids[: found[0]], found[1])
            assert any_codec.decode(token_ids[: found[0]]).startswith(text + found[1])
            assert not any(string in text for string in stop)
    assert num_found or stop[0] not in TEXT


def _bytewise(codec: TextCodec, text: str) -> list[int]:
    """The text with one token a byte (the tokenizer's merges undone)."""
    return [token_id for character in text for token_id in codec.encode(character, is_chat=True)]


def test_the_stop_string_that_ends_first_wins_and_of_two_that_end_together_the_longer(codec):
    token_ids = _bytewise(codec, "xabcd")
    assert StopStrings(codec, ("bcd", "ab")).find(token_ids, 0) == (3, "ab")
    assert StopStrings(codec, ("c", "abc")).find(token_ids, 0) == (4, "abc")
    assert StopStrings(codec, ("abc",)).cut(token_ids[:4], "abc") == "x"


def test_a_stop_string_that_ends_within_the_checked_tokens_does_not_count(codec):
    token_ids = _bytewise(codec, "a.b.c")
    stop_strings = StopStrings(codec, (".",))
    assert stop_strings.find(token_ids, 2) == (4, ".")
    assert stop_strings.cut(token_ids[:4], ".") == "a.b"
    assert stop_strings.find(token_ids, 4) is None


def test_a_stop_string_is_found_in_a_long_run_of_bytes(any_codec):
    token_ids = _bytewise(any_codec, "🙂" * 30 + "é")
    for num_checked in range(len(token_ids) - 8, len(token_ids)):
        assert StopStrings(any_codec, ("é",)).find(token_ids, num_checked) == (len(token_ids), "é")
    token_ids = _bytewise(any_codec, "🙂" * 30 + "abcs")
    assert StopStrings(any_codec, ("🙂abcs",)).find(token_ids, len(token_ids) - 1) == (len(token_ids), "🙂abcs")


def test_bytes_that_are_no_characters_match_no_stop_string_and_raise_no_error(any_codec):
    generator = random.Random(5)
    byte_tokens = _bytewise(any_codec, "🙂é")
    for _ in range(300):
        token_ids = [generator.choice(byte_tokens) for _ in range(40)]
        stop_strings, found, num_checked = StopStrings(any_codec, ("🙂", "é")), None, 0
        while found is None and num_checked < len(token_ids):
            found = stop_strings.find(token_ids[: num_checked + 3], num_checked)
            num_checked += 3
        if found is not None:
            assert isinstance(stop_strings.cut(token_ids[: found[0]], found[1]), str)


def test_finding_a_stop_string_decodes_only_the_end_of_the_output(codec):
    longest = 0

    class Watched:
        def decode(self, token_ids: list[int], **options: Any) -> str:
            nonlocal longest
            longest = max(longest, len(token_ids))
            return str(codec.tokenizer.decode(token_ids, **options))

    token_ids = codec.encode(TEXT * 200, is_chat=True)
    assert StopStrings(replace(codec, tokenizer=Watched()), ("nowhere",)).find(token_ids, len(token_ids) - 4) is None
    assert longest < 100


@pytest.mark.parametrize("stop", [("",), (5,)])
def test_an_empty_stop_string_is_refused(codec, stop):
    with pytest.raises(ValueError, match="at least one character"):
        StopStrings(codec, stop)
