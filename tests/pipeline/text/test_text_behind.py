"""The text of an output is what prompt and output decode to together, less what the prompt decodes to."""

import random

import pytest

from pipeline.text.text_behind import TextBehind
from tests.endpoint.answers.test_text import CODECS, make_codec, outputs


@pytest.mark.parametrize("name", CODECS)
def test_an_output_has_the_text_that_it_adds_to_its_prompt(name, tmp_path):
    codec = make_codec(name, tmp_path)
    num_long, num_compared, generator = 0, 0, random.Random(1)
    for prompt, tokens in zip(outputs(codec, 300, 60, seed=1), outputs(codec, 300, 20, seed=2), strict=True):
        if generator.random() < 0.5:
            prompt.append(codec.tokenizer.eos_token_id)
        alone, together = codec.decode(prompt), codec.decode([*prompt, *tokens])
        behind = TextBehind(codec, prompt)
        num_long += len(behind.context) < len(prompt)
        if together.startswith(alone) and not alone.endswith("\ufffd"):
            num_compared += 1
            assert behind.decode(tokens) == together[len(alone) :], (prompt, tokens)
    assert num_compared > 100, "other outputs end a character, or a run of bytes, that the prompt began"
    assert num_long > 100, "the context of a long prompt is short"


@pytest.mark.parametrize("name", ["metaspace", "byte_fallback"])
def test_a_decoder_that_drops_the_first_space_of_a_text_drops_none_behind_a_prompt(name, tmp_path):
    codec = make_codec(name, tmp_path)
    the = next(token for token in ("▁the", "▁") if token in codec.tokenizer.get_vocab())
    (first,) = codec.tokenizer.convert_tokens_to_ids([the])
    letter = codec.tokenizer.convert_tokens_to_ids("a")
    text = the.replace("▁", " ")
    end = codec.tokenizer.eos_token_id
    assert codec.decode([first]) == text[1:]
    assert TextBehind(codec, [letter, end]).decode([first]) == text
    assert TextBehind(codec, [end]).decode([first]) == text[1:]  # the prompt has no text
    assert codec.token_text(first) == text
    assert codec.token_bytes(first) == text.encode()


def test_a_prompt_of_bytes_alone_is_text_that_keeps_the_first_space(tmp_path):
    codec = make_codec("byte_fallback", tmp_path)
    prompt = codec.tokenizer.convert_tokens_to_ids(["<0xC3>", "<0xA9>"])
    space = codec.tokenizer.convert_tokens_to_ids(["▁"])
    assert codec.decode([*prompt, *space]) == "é "
    assert TextBehind(codec, prompt).decode(space) == " "


def test_half_a_character_of_the_prompt_is_not_of_the_output(tmp_path):
    codec = make_codec("byte_level", tmp_path)
    letter, first, second = (token_id for text in "aé" for token_id in codec.tokenizer(text)["input_ids"])
    assert TextBehind(codec, [letter, first]).decode([letter]) == "a"
    assert TextBehind(codec, [letter, first]).decode([second, letter]) == "\ufffda"
