"""Models, tokens, health."""

from typing import Any

import httpx2
import openai
import pytest

from actors.engine.requests import EngineFacts
from endpoint.app import _described, _description
from endpoint.service.service import ServiceSettings
from tests.endpoint.in_process import CONTEXT, MODEL, answered
from tests.pipeline.made_up import input_row


def test_the_model_is_listed_under_each_of_its_names(client):
    models = client.models.list().data
    assert [model.id for model in models] == [MODEL, "tiny"]
    assert all(model.object == "model" and model.created > 1_600_000_000 for model in models)
    assert client.models.retrieve(MODEL).id == MODEL, "a name may hold slashes"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("other/model")
    assert caught.value.code == "model_not_found"


def test_a_model_says_whether_its_texts_are_exact_and_warns_where_they_are_lossy():
    settings = ServiceSettings(model=MODEL, exact="no", warning="the texts are lossy", fingerprint="fp")
    described = _described(settings, EngineFacts(96, 300, 3), MODEL)
    assert (described["exact"], described["warning"]) == ("no", "the texts are lossy")
    assert _description(settings) == "OpenAI-compatible completions: the texts are lossy."
    assert "token for token" in _description(ServiceSettings(model=MODEL))


@pytest.mark.parametrize("text", ["hello world", "für 日本 🙂", "a<|end|>b"])
def test_tokens_of_a_text_and_back(server, text):
    answer = httpx2.post(f"{server.url}/tokenize", json={"prompt": text}).json()
    expected = server.service.codec.encode(text, is_chat=False)
    assert answer == {"count": len(expected), "max_model_len": CONTEXT, "tokens": expected}
    back = httpx2.post(f"{server.url}/detokenize", json={"tokens": expected}).json()
    assert back == {"prompt": server.service.codec.decode(expected)}


def test_messages_are_tokenized_as_in_a_chat(server, client):
    messages: list[Any] = [{"role": "user", "content": "hello <|end|>"}]
    answer = httpx2.post(f"{server.url}/tokenize", json={"messages": messages}).json()
    chat = answered(client.chat.completions, messages=messages, max_tokens=1)
    assert answer["count"] == chat.usage.prompt_tokens
    assert answer["tokens"] == server.service.codec.prompt(input_row(prompt=None, messages=messages))[1]


def test_health_reports_the_process_and_readiness_the_engine(server):
    assert httpx2.get(f"{server.url}/health").json() == {"status": "ok"}
    assert httpx2.get(f"{server.url}/health/ready").json() == {"status": "ready"}
    engine = server.replica._loop.engine
    step, last = engine.step, server.replica._last_token_at

    def broken() -> Any:
        raise RuntimeError("the GPU fell off the bus")

    try:
        engine.step, server.replica._last_token_at = broken, float("-inf")
        answer = httpx2.get(f"{server.url}/health/ready")
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "5"
        assert "GPU" not in answer.text
        assert httpx2.get(f"{server.url}/health").status_code == 200
    finally:
        engine.step, server.replica._last_token_at = step, last
    assert httpx2.get(f"{server.url}/health/ready").status_code == 200


def test_the_version_is_reported_and_every_route_is_described(server):
    assert set(httpx2.get(f"{server.url}/version").json()) == {"version"}
    routes = {"/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/models", "/tokenize", "/detokenize"}
    assert routes <= httpx2.get(f"{server.url}/openapi.json").json()["paths"].keys()
