"""POST /v1/completions, with the official client as the judge of its form, and the target alone of its text."""

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.endpoint.in_process import CONTEXT, MODEL, answered, streamed

PROMPTS = ["hello world", "a small text", "one", " two three\n", "für 日本 🙂", "x" * 40]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_text_is_the_targets_own_whole_streamed_offline_and_by_transformers(server, client, prompt):
    request: dict[str, Any] = {"prompt": prompt, "max_tokens": 24, "temperature": 0}
    whole = answered(client.completions, **request).choices[0].text
    assert streamed(client.completions, **request)[0] == {0: whole}
    (row,) = server.offline(prompt, temperature=0.0, max_tokens=24)
    assert row["text"] == whole
    model = AutoModelForCausalLM.from_pretrained(server.settings.models.target, dtype=torch.float32)
    ids = torch.tensor([server.service.codec.encode(prompt, is_chat=False)])
    output = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=24, pad_token_id=0
    )
    assert server.service.codec.decode(output[0, ids.shape[1] :].tolist()) == whole


SAMPLING: dict[str, dict[str, Any]] = {
    "plain": {},
    "cool": {"temperature": 0.5},
    "hot": {"temperature": 2.0},
    "top_p": {"top_p": 0.7},
    "top_k": {"top_k": 5},
    "min_p": {"min_p": 0.1},
    "frequency": {"frequency_penalty": 1.5},
    "presence": {"presence_penalty": -1.0},
    "repetition": {"repetition_penalty": 1.3},
    "bias": {"logit_bias": {"70": 5.0, "80": -100.0}},
    "greedy bias": {"temperature": 0.0, "logit_bias": {"75": 3.0}},
    "all": {"temperature": 0.9, "top_p": 0.9, "top_k": 40, "frequency_penalty": 0.3, "min_p": 0.01},
    "negative seed": {"seed": -5},
    "large seed": {"seed": 2**63 - 1},
    "ignoring the end": {"ignore_eos": True, "max_tokens": 60},
    "at least": {"min_tokens": 20, "temperature": 1.5},
    "ending at tokens": {"stop_token_ids": [70, 71, 72, 73, 74, 75, 76]},
    "several": {"n": 3},
    "of these tokens": {"allowed_token_ids": list(range(60, 140)), "temperature": 1.2},
    "without these": {"bad_words": ["a", "e", "i", "th", "on"], "temperature": 1.2},
}
_EXTENSIONS = ("top_k", "min_p", "repetition_penalty", "min_tokens", "ignore_eos", "stop_token_ids")
_EXTENSIONS += ("allowed_token_ids", "bad_words")


@pytest.mark.parametrize("name", SAMPLING)
def test_a_request_with_a_seed_writes_what_the_offline_job_writes_for_a_row_with_it(server, client, name):
    sampling = {"seed": 11, "max_tokens": 24, **SAMPLING[name]}
    official = {key: value for key, value in sampling.items() if key not in _EXTENSIONS}
    extra = {key: value for key, value in sampling.items() if key in _EXTENSIONS}
    request = {"prompt": "hello world", **official, "extra_body": extra}
    answer = answered(client.completions, **request)
    rows = server.offline("hello world", **sampling)
    assert [choice.text for choice in answer.choices] == [row["text"] for row in rows]
    assert [choice.finish_reason for choice in answer.choices] == [row["finish_reason"] for row in rows]
    assert streamed(client.completions, **request)[0] == {row["sample"]: row["text"] for row in rows}


def test_answers_keep_to_allowed_token_ids_and_have_no_bad_words(server, client):
    def written(**fields: Any) -> list[int]:
        more = {"return_token_ids": True, "ignore_eos": True, **fields}
        answer = answered(client.completions, prompt="hello", max_tokens=30, temperature=0, extra_body=more)
        return answer.choices[0].model_extra["token_ids"]

    allowed = list(range(60, 90))
    assert set(written(allowed_token_ids=allowed)) <= set(allowed)
    codec, free = server.service.codec, written()
    spelled = {token_id: codec.token_text(token_id) for token_id in free}
    word = next(token_id for token_id, text in spelled.items() if codec.encode(text, is_chat=True) == [token_id])
    assert word not in written(bad_words=[spelled[word]])


def test_without_a_seed_texts_differ_and_the_answered_seed_reproduces_them(client):
    request: dict[str, Any] = {"model": MODEL, "prompt": ["one", "one"], "max_tokens": 20}
    first, second = (client.completions.create(**request) for _ in range(2))
    choices = [*first.choices, *second.choices]
    assert len({choice.text for choice in choices}) == 4
    for choice in choices:
        again = answered(client.completions, prompt="one", max_tokens=20, seed=choice.model_extra["seed"])
        assert again.choices[0].text == choice.text


def test_a_prompt_comes_in_four_forms(server, client):
    def ids(text: str) -> list[int]:
        return server.service.codec.encode(text, is_chat=False)

    forms: list[Any] = ["one", ids("one"), ["one", "two three"], [ids("one"), ids("two three")]]
    answers = [answered(client.completions, prompt=form, temperature=0) for form in forms]
    texts = [[choice.text for choice in answer.choices] for answer in answers]
    assert texts[0] == texts[1] == texts[2][:1]
    assert texts[2] == texts[3]
    assert len(texts[2]) == 2


def test_choice_i_n_plus_j_is_sample_j_of_prompt_i(server, client):
    prompts, request = ["one", "two three"], {"n": 3, "seed": 5, "max_tokens": 12}
    answer = answered(client.completions, prompt=prompts, **request)
    expected = [row["text"] for prompt in prompts for row in server.offline(prompt, **request)]
    assert [choice.index for choice in answer.choices] == list(range(6))
    assert [choice.text for choice in answer.choices] == expected
    texts, _ = streamed(client.completions, prompt=prompts, **request)
    assert [texts[index] for index in range(6)] == expected


def test_a_text_has_sixteen_tokens_by_default_and_never_exceeds_the_context(client):
    answer = answered(client.completions, prompt="one", extra_body={"ignore_eos": True})
    assert answer.usage.completion_tokens == 16
    answer = answered(client.completions, prompt="one", max_tokens=5000, extra_body={"ignore_eos": True})
    assert answer.usage.total_tokens == CONTEXT
    assert answer.choices[0].finish_reason == "length"


def test_stop_strings_end_a_text_and_no_part_of_one_is_shown_or_streamed(server, client):
    request: dict[str, Any] = {"prompt": "hello world", "seed": 3, "max_tokens": 60}
    whole = answered(client.completions, **request).choices[0].text
    for start in range(2, 22, 5):
        stop = whole[start : start + 3]
        for stops in (stop, [stop], ["nowhere at all", stop, stop + whole[start + 3]]):
            answer = answered(client.completions, stop=stops, **request)
            (row,) = server.offline(**{**request, "stop": stops})
            assert (answer.choices[0].text, answer.choices[0].finish_reason) == (row["text"], "stop")
            assert answer.choices[0].model_extra["stop_reason"] == row["stop_reason"]
            texts, chunks = streamed(client.completions, stop=stops, **request)
            assert texts == {0: row["text"]}
            text = ""
            for chunk in chunks:
                text += chunk.choices[0].text
                assert row["text"].startswith(text), "a chunk held more than the text before the stop string"


def test_each_choice_finishes_once_under_one_id_and_the_last_chunk_has_the_counts(client):
    request: dict[str, Any] = {"prompt": ["one", "two"], "n": 2, "seed": 1}
    _, chunks = streamed(client.completions, stream_options={"include_usage": True}, **request)
    whole = answered(client.completions, **request)
    assert len({chunk.id for chunk in chunks}) == len({chunk.created for chunk in chunks}) == 1
    finished = [choice.index for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    assert sorted(finished) == [0, 1, 2, 3]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert all("usage" in chunk.model_fields_set for chunk in chunks)
    _, without = streamed(client.completions, **request)
    assert not any("usage" in chunk.model_fields_set for chunk in without)
    assert all(chunk.choices for chunk in without)


def test_log_probabilities_are_those_of_the_targets_raw_logits(server, client):
    request: Any = {"prompt": "hello world", "max_tokens": 10, "seed": 2, "logprobs": 3, "frequency_penalty": 1.0}
    logprobs = answered(client.completions, **request).choices[0].logprobs
    (row,) = server.offline(**request)
    assert logprobs.token_logprobs == pytest.approx(row["logprobs"], abs=1e-4)
    written = [server.service.codec.token_text(token_id) for token_id in row["token_ids"]]
    assert any("\ufffd" in text for text in written), "parts of characters are written as bytes"
    for text, token in zip(written, logprobs.tokens, strict=True):
        assert token.startswith("bytes:\\x") if "\ufffd" in text else token == text
    entries = zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, row["top_logprobs"], strict=True)
    for token, own, tops, expected in entries:
        assert tops[token] == pytest.approx(own)
        assert max(tops.values()) == pytest.approx(max(expected[0]["logprob"], own), abs=1e-4)
        assert len(tops) in (3, 4)
    assert logprobs.text_offset[0] == 0
    assert logprobs.text_offset == sorted(logprobs.text_offset)


@pytest.mark.parametrize("echo", [False, True])
def test_streamed_log_probabilities_are_those_of_the_whole_answer(client, echo):
    request: dict[str, Any] = {"prompt": "für one", "seed": 2, "max_tokens": 20, "logprobs": 2, "echo": echo}
    whole = answered(client.completions, **request).choices[0]
    texts, chunks = streamed(client.completions, **request)
    assert texts == {0: whole.text}
    parts = [choice.logprobs for chunk in chunks for choice in chunk.choices]
    for name in ("tokens", "text_offset"):
        assert [entry for part in parts for entry in getattr(part, name)] == getattr(whole.logprobs, name)
    values = [value for part in parts for value in part.token_logprobs]
    assert values[echo:] == pytest.approx(whole.logprobs.token_logprobs[echo:], abs=1e-4)


@pytest.mark.parametrize("prompt", ["hello world, one two", "für 日本 🙂", "o"])
def test_echo_scores_the_prompt_as_transformers_does(server, client, prompt):
    """The request of lm-eval's local-completions is answered in full."""
    ids = server.service.codec.encode(prompt, is_chat=False)
    model = AutoModelForCausalLM.from_pretrained(server.settings.models.target, dtype=torch.float32)
    expected_TV = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    expected = [expected_TV[position, token_id].item() for position, token_id in enumerate(ids[1:])]
    for form in (prompt, ids):
        request: dict[str, Any] = {"prompt": form, "max_tokens": 0, "echo": True, "logprobs": 1, "temperature": 0}
        answer = answered(client.completions, **request)
        choice = answer.choices[0]
        assert choice.text == prompt
        assert choice.finish_reason == "length"
        assert choice.logprobs.token_logprobs[0] is None
        assert choice.logprobs.token_logprobs[1:] == pytest.approx(expected, abs=1e-4)
        assert len(choice.logprobs.tokens) == len(choice.logprobs.text_offset) == len(ids)
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(ids), 0)


def test_echo_puts_the_prompt_before_the_text_and_scores_both(server, client):
    request: dict[str, Any] = {"prompt": ["one two", "hello"], "temperature": 0, "max_tokens": 1, "logprobs": 1}
    plain = answered(client.completions, **request)
    echoed = answered(client.completions, echo=True, **request)
    for prompt, before, after in zip(request["prompt"], plain.choices, echoed.choices, strict=True):
        assert after.text == prompt + before.text
        num_prompt = len(server.service.codec.encode(prompt, is_chat=False))
        assert after.logprobs.tokens[num_prompt:] == before.logprobs.tokens
        assert after.logprobs.text_offset[num_prompt] == len(prompt)
    assert answered(client.completions, echo=True, prompt="one", max_tokens=0).choices[0].text == "one"
    assert streamed(client.completions, echo=True, prompt="one", max_tokens=0)[0] == {0: "one"}


def test_prompt_logprobs_are_those_of_transformers_with_their_ranks(server, client):
    codec, prompts = server.service.codec, ["hello world, one two", "für"]
    model = AutoModelForCausalLM.from_pretrained(server.settings.models.target, dtype=torch.float32)
    request: dict[str, Any] = {"prompt": prompts, "max_tokens": 2, "n": 2, "extra_body": {"prompt_logprobs": 2}}
    answer = answered(client.completions, **request)
    for choice in answer.choices:
        ids = codec.encode(prompts[choice.index // 2], is_chat=False)
        first, *others = choice.model_extra["prompt_logprobs"]
        assert first is None
        assert len(others) == len(ids) - 1
        for scores_V, token_id, entries in zip(
            model(torch.tensor([ids])).logits[0].log_softmax(-1), ids[1:], others, strict=False
        ):
            best = scores_V.topk(2).indices.tolist()
            assert set(entries) == {str(token_id), *map(str, best)}
            for other, entry in entries.items():
                logprob = scores_V[int(other)].item()
                assert entry["logprob"] == pytest.approx(logprob, abs=1e-4)
                assert entry["rank"] == int((scores_V >= logprob).sum())
                assert entry["decoded_token"] == codec.token_text(int(other))


def test_prompt_logprobs_stand_beside_an_echo_and_alone(client):
    request: dict[str, Any] = {"prompt": "one two", "max_tokens": 0}
    scored = {"extra_body": {"prompt_logprobs": 3}}
    alone = answered(client.completions, **request, **scored).choices[0]
    both = answered(client.completions, **request, **scored, echo=True, logprobs=1).choices[0]
    echo = answered(client.completions, **request, echo=True, logprobs=1).choices[0]
    assert (alone.text, both.text) == ("", "one two")
    assert both.logprobs.top_logprobs == echo.logprobs.top_logprobs
    assert both.model_extra["prompt_logprobs"] == alone.model_extra["prompt_logprobs"]
    assert {len(entries) for entries in alone.model_extra["prompt_logprobs"][1:]} <= {3, 4}
    none = answered(client.completions, **request, extra_body={"prompt_logprobs": 0}).choices[0]
    assert {len(entries) for entries in none.model_extra["prompt_logprobs"][1:]} == {1}
    assert "prompt_logprobs" not in echo.model_extra


def test_best_of_returns_the_samples_whose_tokens_are_likeliest(server, client):
    request: dict[str, Any] = {"prompt": "hello world", "seed": 9, "max_tokens": 12}
    rows = server.offline(**request, n=6, logprobs=0)
    rows.sort(key=lambda row: -sum(row["logprobs"]) / len(row["logprobs"]))
    answer = answered(client.completions, n=2, best_of=6, **request)
    assert [choice.text for choice in answer.choices] == [row["text"] for row in rows[:2]]
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[0].logprobs is None
    assert answer.usage.completion_tokens == sum(row["num_output_tokens"] for row in rows)


def test_an_answer_reports_speculation_with_vllms_names(server, client):
    request = {"prompt": "hello world", "temperature": 0, "max_tokens": 40, "extra_body": {"ignore_eos": True}}
    numbers = answered(client.completions, **request).model_extra["metrics"]["speculative_decoding"]
    assert numbers["num_spec_tokens"] == 3
    assert sum(numbers["acceptance_histogram"]) == numbers["num_spec_steps"]
    accepted = sum(count * accepted for accepted, count in enumerate(numbers["acceptance_histogram"]))
    assert accepted == numbers["num_accepted_draft_tokens"] > 0
    by_draft = numbers["acceptance_histogram_by_draft_length"]
    assert sum(int(drafted) * sum(counts) for drafted, counts in by_draft.items()) == numbers["num_draft_tokens"]
    assert numbers["draft_acceptance_rate"] == accepted / numbers["num_draft_tokens"]
    assert numbers["mean_acceptance_length"] == 1 + accepted / numbers["num_spec_steps"]
    _, chunks = streamed(client.completions, stream_options={"include_usage": True}, **request)
    assert chunks[-1].model_extra["metrics"]["speculative_decoding"] == numbers
    assert answered(client.completions, n=2, **request).model_extra["metrics"]["speculative_decoding"] is None


def test_a_request_may_draft_less_or_nothing_and_gets_the_same_text(client):
    request: dict[str, Any] = {"prompt": "für one", "seed": 4, "max_tokens": 40, "temperature": 0.9}
    texts = set()
    for limit in (0, 1, 3, None):
        extra = {"ignore_eos": True, "num_speculative_tokens": limit}
        answer = answered(client.completions, extra_body=extra, **request)
        drafts = answer.model_extra["metrics"]["speculative_decoding"]
        texts.add(answer.choices[0].text)
        if limit == 0:
            assert drafts is None
        else:
            assert max(map(int, drafts["acceptance_histogram_by_draft_length"])) == (3 if limit is None else limit)
    assert len(texts) == 1


def test_a_stream_shows_what_was_drafted_in_vain_if_it_is_asked_to(server, client):
    request = {"prompt": "für one", "seed": 4, "max_tokens": 60, "temperature": 0.9}
    extra = {"include_draft_spans": True, "ignore_eos": True}
    _, silent = streamed(client.completions, extra_body=extra, **request)
    texts, chunks = streamed(client.completions, extra_body={**extra, "include_rejected_drafts": True}, **request)
    num_replaced, text = 0, ""
    for chunk, other in zip(chunks, silent, strict=True):
        spans, counts = (chunk.choices[0].model_extra[name] for name in ("draft_spans", "draft_counts"))
        shown = [{name: span[name] for name in ("text", "is_accepted")} for span in spans if span["text"]]
        assert shown == other.choices[0].model_extra["draft_spans"]
        rejected = [span["rejected"] for span in spans if "rejected" in span]
        if counts["num_draft_tokens"] == counts["num_accepted_tokens"]:
            assert not rejected
        num_replaced += len(rejected)
        text += "".join(span["text"] for span in spans)
    assert text == texts[0]
    assert num_replaced > 3
    assert not any("rejected" in span for chunk in silent for span in chunk.choices[0].model_extra["draft_spans"])


def test_an_answer_names_the_model_and_the_fingerprint(client):
    for name in (MODEL, "tiny"):
        answer = client.completions.create(model=name, prompt="one", max_tokens=1)
        assert (answer.object, answer.model, answer.system_fingerprint) == ("text_completion", MODEL, "fp_1")
        assert answer.id.startswith("cmpl-")
