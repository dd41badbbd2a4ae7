"""Two real models from GGUF files: tokens, texts, chats and log-probabilities are those of transformers itself."""

from __future__ import annotations

from typing import Any

import pytest

from decoding.checkpoint.supported import model_folder
from pipeline.errors import RowError
from pipeline.text.codec import TextCodec
from tests.endpoint.in_process import Running, settings_of
from tests.pipeline.made_up import input_row
from tests.real.conftest import Reference

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]
TEXTS = [
    "The capital of France is",
    " two  spaces, then a tab\tand a line\n\nend ",
    "été 你好 🙂 don't f(x)={'a': [1.5]}",
    "a<|im_end|>b<end_of_turn><bos>",
]
CHATS = ["Say hello.", "What is 2 + 2? Answer with one number.", "Name three colours, one on each line."]


@pytest.fixture(scope="module")
def chatting(smollm2: str) -> Running:
    return Running(0, settings_of((model_folder(smollm2), None), max_model_len=512))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def continuing(gemma3: str) -> Running:
    return Running(0, settings_of((model_folder(gemma3), None), max_model_len=512))  # type: ignore[arg-type]


def _chat(text: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "temperature": 0.0, **fields}


def _check_tokenizer(codec: TextCodec, reference: Reference) -> None:
    for text in TEXTS:
        ids = reference.tokenizer(text).input_ids
        assert codec.tokenizer(text).input_ids == ids
        assert codec.tokenizer.decode(ids) == reference.tokenizer.decode(ids)
    assert codec.tokenizer.all_special_ids == reference.tokenizer.all_special_ids
    assert codec.chat_template == reference.tokenizer.chat_template


def test_smollm2_answers_chats_with_the_tokens_of_generate_and_ends_where_it_ends(
    chatting: Running, smollm2_reference: Reference
) -> None:
    tokenizer = smollm2_reference.tokenizer
    rows = [row for (row,) in chatting.rows_of([_chat(text, max_tokens=40) for text in CHATS])]
    for text, row in zip(CHATS, rows, strict=True):
        messages = [{"role": "user", "content": text}]
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        expected = smollm2_reference.greedy(prompt, 40)
        has_ended = expected[-1] == tokenizer.eos_token_id
        assert row["token_ids"] == expected
        assert row["finish_reason"] == ("stop" if has_ended else "length")
        assert row["num_prompt_tokens"] == len(prompt)
        assert row["text"] == tokenizer.decode(expected, skip_special_tokens=True)
    assert "stop" in {row["finish_reason"] for row in rows}, "nothing has ended"
    assert tokenizer.eos_token == "<|im_end|>"


def test_the_tokenizer_and_the_template_of_smollm2_are_those_in_its_file(
    chatting: Running, smollm2_reference: Reference
) -> None:
    _check_tokenizer(chatting.codec, smollm2_reference)


def test_a_chat_that_the_template_of_smollm2_cannot_render_is_an_error_of_its_row(chatting: Running) -> None:
    for message in ({"role": "user", "content": [{"type": "image", "image": "x"}]}, {"role": "user"}):
        with pytest.raises(RowError):
            chatting.rows_of([{"messages": [message]}])


def test_logprobs_of_smollm2_are_those_of_transformers(chatting: Running, smollm2_reference: Reference) -> None:
    requests = [_chat(text, max_tokens=24, logprobs=2, temperature=heat) for text in CHATS[:2] for heat in (0.0, 0.9)]
    for request, (row,) in zip(requests, chatting.rows_of(requests), strict=True):
        prompt = chatting.codec.prompt(input_row(messages=request["messages"]))[1]
        expected = smollm2_reference.logprobs(prompt, row["token_ids"])
        assert row["logprobs"] == pytest.approx(expected, abs=2e-4)


@pytest.mark.slow
def test_gemma_continues_texts_with_the_tokens_of_generate_and_keeps_their_first_space(
    continuing: Running, gemma3_reference: Reference
) -> None:
    _check_tokenizer(continuing.codec, gemma3_reference)
    requests = [{"prompt": text, "temperature": 0.0, "max_tokens": 24} for text in TEXTS[:3]]
    rows = [row for (row,) in continuing.rows_of(requests)]
    decode = gemma3_reference.tokenizer.decode
    for text, row in zip(TEXTS, rows, strict=False):
        prompt = gemma3_reference.tokenizer(text).input_ids
        expected = gemma3_reference.greedy(prompt, 24)
        assert row["token_ids"] == expected
        together, own = (decode(ids, skip_special_tokens=True) for ids in (prompt + expected, prompt))
        assert own + row["text"] == together
    assert rows[0]["text"].startswith(" ")


@pytest.mark.slow
def test_a_chat_for_gemma_which_has_no_template_is_an_error_that_says_so(continuing: Running) -> None:
    with pytest.raises(RowError, match="chat template"):
        continuing.rows_of([_chat("Say hello.")])
