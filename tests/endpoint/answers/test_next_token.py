"""The one token behind an echo that is scored is what the engine would have written there."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from actors.engine.requests import EngineFacts, Generation
from decoding import Engine, SamplingParams, ScoredText
from decoding.sequence import TokenLogprobs
from endpoint.answers.logprobs import is_next_token, known_deltas
from endpoint.edge.install import EdgeSettings
from endpoint.service.service import ServiceSettings
from tests.endpoint.in_process import MODEL, Server, answered, running_server, settings_of, streamed

PROMPTS = [f"{word} {number}" for word in ("hello", "a small text", "für 日本 🙂") for number in range(3)][:8]
ASKED: dict[str, Any] = {"prompt": PROMPTS, "max_tokens": 1, "temperature": 0, "logprobs": 2}


@pytest.fixture
def num_written(server: Server, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of sequences of each generation that the engine is asked for."""
    return _counted(server, monkeypatch)


def _counted(server: Server, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    backend, asked = server.service.backend, list[int]()
    generate = backend.generate

    def counted(generation: Generation) -> Any:
        asked.append(generation.num_sequences)
        return generate(generation)

    monkeypatch.setattr(backend, "generate", counted)
    return asked


def test_it_is_known_from_the_scores_and_no_text_is_read_twice(server, client, num_written):
    echoed = answered(client.completions, echo=True, **ASKED)
    assert num_written == []
    written = answered(client.completions, **ASKED)
    assert num_written == [len(PROMPTS)]
    assert echoed.usage == written.usage.model_copy(
        update={"prompt_tokens_details": echoed.usage.prompt_tokens_details}
    )
    for prompt, ours, plain in zip(PROMPTS, echoed.choices, written.choices, strict=True):
        assert ours.text == prompt + plain.text
        assert ours.finish_reason == plain.finish_reason
        assert ours.logprobs.tokens[-1:] == plain.logprobs.tokens
        assert ours.logprobs.token_logprobs[-1] == pytest.approx(plain.logprobs.token_logprobs[0], abs=1e-4)
        assert ours.logprobs.top_logprobs[-1] == pytest.approx(plain.logprobs.top_logprobs[0], abs=1e-4)
        assert all(len(top) in (2, 3) for top in ours.logprobs.top_logprobs[1:])
    assert streamed(client.completions, echo=True, **ASKED)[0] == dict(enumerate(each.text for each in echoed.choices))
    assert num_written == [len(PROMPTS)]


def test_without_alternatives_an_echo_has_none(client):
    """Though the runner-up was looked at."""
    choice = answered(client.completions, **{**ASKED, "logprobs": 0, "echo": True}).choices[0]
    assert all(len(top) == 1 for top in choice.logprobs.top_logprobs[1:])
    both = answered(client.completions, **ASKED, echo=True, extra_body={"prompt_logprobs": 1}).choices[0]
    assert all(len(entry) in (1, 2) for entry in both.model_extra["prompt_logprobs"][1:])


def test_where_rounding_could_decide_the_engine_writes_it(server, client, num_written, monkeypatch):
    known = answered(client.completions, echo=True, **ASKED)
    monkeypatch.setattr(Engine, "close_call", property(lambda engine: 1e6))
    assert [choice.text for choice in answered(client.completions, echo=True, **ASKED).choices] == [
        choice.text for choice in known.choices
    ]
    assert num_written == [len(PROMPTS)]


@contextmanager
def _server_of_large_logits(text_pair: tuple[str, str], folder: Path, apart: float | None) -> Iterator[Server]:
    """Run a model whose logits are 100 times as large.

    With `apart` each second token's logit is that of the token before it, but for this share of it.
    """
    target = AutoModelForCausalLM.from_pretrained(text_pair[0])
    head = target.get_output_embeddings().weight.data
    head *= 100
    if apart is not None:
        head[1::2] = head[::2][: len(head) // 2] * (1 - apart)
    target.save_pretrained(folder)
    AutoTokenizer.from_pretrained(text_pair[0]).save_pretrained(folder)
    settings = settings_of((str(folder), text_pair[1]))
    with running_server(settings, ServiceSettings(model=MODEL), EdgeSettings(keys=None)) as server:
        yield server


@pytest.mark.parametrize(("apart", "is_written"), [(None, False), (4e-6, True)])
def test_rounding_moves_large_logits_further_so_a_token_is_known_where_the_next_is_further_away(
    text_pair, tmp_path, monkeypatch, apart, is_written
):
    with _server_of_large_logits(text_pair, tmp_path, apart) as server, server.client() as client:
        engine = server.plain
        scores = [ScoredText.whole((*server.codec.encode(prompt, is_chat=False), 0), num_top=2) for prompt in PROMPTS]
        engine.score(scores)
        for text in scores:
            (_, best), (_, second) = text.scores[0][-1].top
            assert best - second > 2 * engine.close_call, "the best two are further apart than small logits could move"
        num_written = _counted(server, monkeypatch)
        echoed = answered(client.completions, echo=True, **ASKED)
        assert num_written == ([len(PROMPTS)] if is_written else [])
        written = answered(client.completions, **ASKED)
        assert [choice.text for choice in echoed.choices] == [
            prompt + choice.text for prompt, choice in zip(PROMPTS, written.choices, strict=True)
        ]


@pytest.mark.parametrize(
    "more",
    [
        {"max_tokens": 2},
        {"temperature": 0.5},
        {"n": 2},
        {"stop": ["e"]},
        {"logit_bias": {"75": 9.0}},
        {"frequency_penalty": 1.0},
        {"extra_body": {"min_tokens": 1}},
        {"extra_body": {"ignore_eos": True}},
        {"extra_body": {"stop_token_ids": [70, 71, 72, 73, 74]}},
        {"extra_body": {"allowed_token_ids": [70, 71]}},
        {"extra_body": {"structured_outputs": {"choice": ["yes"]}}},
    ],
)
def test_anything_else_is_written_by_the_engine(client, num_written, more):
    asked = {**ASKED, "seed": 3, **more}
    echoed, plain = (answered(client.completions, **asked, **echo) for echo in ({"echo": True}, {}))
    assert num_written == [len(PROMPTS) * asked.get("n", 1)] * 2
    num = asked.get("n", 1)
    assert [choice.text for choice in echoed.choices] == [
        PROMPTS[index // num] + choice.text for index, choice in enumerate(plain.choices)
    ]


def test_an_end_token_ends_the_text_and_one_unknown_token_leaves_all_to_the_engine():
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=1, seed=4)
    generation = Generation(request_id="r", prompts=((5, 6), (7,)), seeds=(1, 2), params=params)
    assert is_next_token(generation)
    own, end, other = (
        TokenLogprobs(-value, ((token, -value), (9, -3.0))) for value, token in ((2.0, 6), (0.1, 0), (0.2, 8))
    )
    facts = EngineFacts(96, 300, 3, eos_token_ids=frozenset({0}))
    scores, deltas = known_deltas(generation, [[own, end], [other]], facts)
    assert scores == [[own], []]
    assert [delta.token_ids for delta in deltas] == [(0,), (8,)]
    assert [delta.ending.finish_reason for delta in deltas if delta.ending] == ["stop", "length"]
    assert [delta.logprobs[0].top for delta in deltas] == [((0, -0.1),), ((8, -0.2),)]
    assert known_deltas(generation, [[own], [other]], facts) == ([[own], []], [])
