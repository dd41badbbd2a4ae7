"""Tokens, texts, chats and log-probabilities of real models are those of transformers itself."""

from typing import Any

import pytest

from pipeline.errors import RowError
from tests.endpoint.in_process import Running
from tests.real.conftest import Reference, chat, settings_for

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]
TEXTS = [
    "The capital of France is",
    " two  spaces, then a tab\tand a line\n\nend ",
    "été 你好 🙂 don't f(x)={'a': [1.5]}",
    "a<|im_end|>b<end_of_turn><bos>",
]
CHATS = ["Say hello.", "What is 2 + 2? Answer with one number.", "Name three colours, one on each line."]


@pytest.fixture(scope="module", params=["smollm2", pytest.param("gemma3", marks=pytest.mark.slow)])
def model(request: pytest.FixtureRequest) -> tuple[Running, Reference]:
    """A model in Dray's hands and in transformers'."""
    return Running(0, settings_for(request.param)), Reference(request.param)


def test_a_model_writes_the_tokens_and_log_probabilities_of_transformers_and_keeps_every_space(model):
    running, reference = model
    tokenizer = reference.tokenizer
    asked: list[dict[str, Any]] = [{"prompt": text} for text in TEXTS[:3]]
    prompts = [tokenizer(text).input_ids for text in TEXTS[:3]]
    if tokenizer.chat_template is not None:
        asked += map(chat, CHATS)
        more = {"add_generation_prompt": True, "return_dict": False}
        prompts += [tokenizer.apply_chat_template(chat(text)["messages"], **more) for text in CHATS]
    rows = running.rows_of([{**each, "temperature": 0.0, "max_tokens": 32, "logprobs": 2} for each in asked])
    for prompt, (row,) in zip(prompts, rows, strict=True):
        expected = reference.greedy(prompt, 32)
        has_ended = expected[-1] == tokenizer.eos_token_id
        assert (row["num_prompt_tokens"], row["token_ids"]) == (len(prompt), expected)
        assert row["finish_reason"] == ("stop" if has_ended else "length")
        assert row["logprobs"] == pytest.approx(reference.logprobs(prompt, expected), abs=2e-4)
        together, own = (tokenizer.decode(ids, skip_special_tokens=True) for ids in (prompt + expected, prompt))
        assert own + row["text"] == together
    assert rows[0][0]["text"].startswith(" ")
    assert "stop" in {row["finish_reason"] for (row,) in rows[3:] or rows} or tokenizer.chat_template is None


def test_the_tokenizer_and_the_template_of_a_model_are_those_in_its_file(model):
    codec, expected = model[0].codec, model[1].tokenizer
    for text in TEXTS:
        ids = expected(text).input_ids
        assert codec.tokenizer(text).input_ids == ids
        assert codec.tokenizer.decode(ids) == expected.decode(ids)
    assert codec.tokenizer.all_special_ids == expected.all_special_ids
    assert codec.chat_template == expected.chat_template


def test_a_chat_that_cannot_be_rendered_is_an_error_of_its_row(model):
    image = {"messages": [{"role": "user", "content": [{"type": "image", "image": "x"}]}]}
    has_template = model[0].codec.chat_template is not None
    for request in (image, {"messages": [{"role": "user"}]}) if has_template else (chat("Say hello."),):
        with pytest.raises(RowError, match=None if has_template else "chat template"):
            model[0].rows_of([request])
