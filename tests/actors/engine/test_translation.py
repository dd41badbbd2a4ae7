"""Rows to sequences and back."""

from dataclasses import replace
from typing import Any

import pytest
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from actors import GeneratorSettings, ModelSettings
from actors.engine.translation import decode_row, encode_row, row_params
from actors.engine.vocabulary import with_bad_word_ids
from decoding import SamplingParams
from pipeline.errors import ErrorRow, RowError
from pipeline.inputs.rows import InputRow, result_or_error
from pipeline.text import tokenizer
from pipeline.text.codec import TextCodec
from tests.text_pair import save_byte_fallback_tokenizer, save_tokenizer


def row(prompt: str | None = None, messages: list[Any] | None = None, **overrides: Any) -> InputRow:
    return InputRow(
        row_id=0,
        row_number=0,
        user_id=None,
        prompt=prompt,
        messages=messages,
        overrides=overrides,
        columns={},
        carried={},
    )


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> TextCodec:
    """A tokenizer that adds its end token before every plain text."""
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer: PreTrainedTokenizerFast = save_tokenizer(folder)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing("<|end|> $A", special_tokens=[("<|end|>", 0)])
    tokenizer.save_pretrained(folder)
    return TextCodec.load(str(folder))


SETTINGS = GeneratorSettings(models=ModelSettings(target="unused"), sampling=SamplingParams(n=2), seed=5)


def test_a_plain_prompt_gets_the_tokenizers_special_tokens_and_a_chat_only_its_templates(codec: TextCodec) -> None:
    (plain, _) = encode_row(row(prompt="hello"), 0, codec, SETTINGS).sequences
    (chat, _) = encode_row(row(messages=[{"role": "user", "content": "hello"}]), 0, codec, SETTINGS).sequences
    assert plain.prompt_token_ids[0] == 0
    assert 0 not in plain.prompt_token_ids[1:]
    assert 0 not in chat.prompt_token_ids


def test_noise_comes_from_seed_ordinal_and_sample_and_a_rows_own_seed_replaces_the_first_two(codec: TextCodec) -> None:
    def keys(ordinal: int, **overrides: Any) -> list[int]:
        return [s.noise_key for s in encode_row(row(prompt="hello", **overrides), ordinal, codec, SETTINGS).sequences]

    assert len({*keys(0), *keys(1)}) == 4
    assert keys(0, seed=3) == keys(1, seed=3)
    assert len(set(keys(0, seed=3))) == 2


@pytest.mark.parametrize(
    "overrides", [{"temprature": 1}, {"n": "2"}, {"stop": None}, {"logit_bias": []}, {"bad_words": [""]}]
)
def test_overrides_that_cannot_be_are_errors_of_their_row(overrides: dict[str, Any], codec: TextCodec) -> None:
    with pytest.raises(RowError) as caught:
        row_params(SamplingParams(), overrides, codec)
    assert caught.value.stage == "params"


def test_an_unforeseen_exception_is_an_error_of_its_row_but_memory_and_disk_are_not() -> None:
    def fail(error: Exception) -> None:
        raise error

    failed = result_or_error("encode", row(), "in.jsonl", fail, KeyError("odd"))
    assert isinstance(failed, ErrorRow)
    assert (failed.stage, failed.error_type, failed.message) == ("encode", "KeyError", "'odd'")
    for general in (MemoryError, OSError):
        with pytest.raises(general):
            result_or_error("encode", row(), "in.jsonl", fail, general())


def test_the_samples_of_a_row_share_its_prompt(codec: TextCodec) -> None:
    sequences = encode_row(row(prompt="hello", n=3), 4, codec, SETTINGS).sequences
    assert [s.sample for s in sequences] == [0, 1, 2]
    assert len({s.prompt_token_ids for s in sequences}) == 1
    assert len({s.noise_key for s in sequences}) == 3


def test_the_texts_of_bad_words_become_their_tokens_with_and_without_a_space_before_them(codec: TextCodec) -> None:
    def words(run: Any, **overrides: Any) -> list[list[str]]:
        settings = replace(SETTINGS, sampling=SamplingParams(bad_words=run))
        (sequence,) = encode_row(row(prompt="hello", **overrides), 0, codec, settings).sequences
        return [[codec.token_text(token_id) for token_id in word] for word in sequence.params.bad_word_ids]

    assert {"".join(word) for word in words(["the"])} == {"the", " the"}
    assert words(["the"]) == words(["  the"]) == words([], bad_words=["the"]) == words(["the", " the"])
    assert ["".join(word) for word in words([" ", "\n"])] == [" ", "\n", " \n"]
    assert words(["the"], bad_words=[]) == []
    assert words([[5, 6]]) == words([], bad_words=[[5, 6]]) == [[codec.token_text(5), codec.token_text(6)]]
    assert len(words(["the", "the"])) == 2
    plain = with_bad_word_ids(SamplingParams(bad_words=["the"]), codec)
    assert all(0 not in word for word in plain.bad_word_ids), "no special token is added"


def test_words_that_many_rows_have_are_tokenized_once_and_the_newest_lists_are_kept(
    codec: TextCodec, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    read = tokenizer.bad_word_ids

    def counted(tokenizer: Any, text: str) -> list[tuple[int, ...]]:
        asked.append(text)
        return read(tokenizer, text)

    of_codec = replace(codec).bad_words
    plain = of_codec(("the", (7, 8)))
    monkeypatch.setattr(tokenizer, "bad_word_ids", counted)
    assert of_codec(("the", (7, 8))) is plain
    assert asked == []
    for number in range(70):
        of_codec((f"word {number}",))
    assert of_codec.cache_info().currsize == 64
    assert of_codec(("the", (7, 8))) == plain
    assert asked == [*(f"word {number}" for number in range(70)), "the"]
    assert row_params(SamplingParams(), {"bad_words": ["the", [7, 8]]}, codec).bad_words == plain


def test_a_bad_word_without_tokens_is_refused(codec: TextCodec) -> None:
    with pytest.raises(RowError, match=r"sampling\.bad_words\[1\] is '\\ud800', and it holds half a surrogate pair"):
        row_params(SamplingParams(), {"bad_words": ["a", "\ud800"]}, codec)


def test_the_first_space_of_an_output_is_in_its_text_and_content_and_can_be_a_stop_string(tmp_path) -> None:
    save_byte_fallback_tokenizer(tmp_path)
    codec = TextCodec.load(str(tmp_path))
    assert codec.decode(codec.tokenizer(" the", add_special_tokens=False)["input_ids"]) == "the", "it is dropped"
    encoded = encode_row(row(prompt="a", stop=[" th"], n=1), 0, codec, SETTINGS)
    (sequence,) = encoded.sequences
    space = codec.tokenizer.convert_tokens_to_ids("▁")
    sequence.output_token_ids += [space, *codec.tokenizer.convert_tokens_to_ids(["th", "e"])]
    assert sequence.stop_condition is not None
    assert sequence.stop_condition(sequence.output_token_ids, 0) == (2, " th")
    sequence.finish_reason = "length"
    (generation,) = decode_row(encoded, codec)
    assert generation["text"] == generation["content"] == " the"
