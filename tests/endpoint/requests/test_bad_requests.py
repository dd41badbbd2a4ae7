"""Bad requests: each one of the table gets its whole error, and the server works as before."""

import json

import openai
import pytest

from tests.endpoint.in_process import CONTEXT, MODEL, answered
from tests.endpoint.requests.bad_bodies import BAD_BODIES
from tests.endpoint.requests.bad_chats import BAD_CHATS
from tests.endpoint.requests.bad_completions import BAD_COMPLETIONS
from tests.endpoint.requests.bad_requests import HELLO, shared
from tests.endpoint.toy_app import BEARER
from tests.endpoint.web import ask

BAD_REQUESTS = [*BAD_COMPLETIONS, *BAD_CHATS, *shared(BAD_COMPLETIONS), *BAD_BODIES]


@pytest.mark.parametrize("bad", BAD_REQUESTS, ids=[bad.name for bad in BAD_REQUESTS])
def test_a_bad_request_gets_its_whole_error(whole, bad):
    answer = ask(whole, bad.path, bad.body, method=bad.method, headers={**BEARER, **dict(bad.headers)})
    expected = {"message": bad.message, "type": "invalid_request_error", "param": bad.param, "code": bad.code}
    assert (answer.status, answer.error) == (bad.status, expected)
    (request_id,) = answer.request_ids
    assert len(request_id) == 32


def test_the_names_in_the_table_differ():
    assert len({bad.name for bad in BAD_REQUESTS}) == len(BAD_REQUESTS) > 300


def test_the_server_writes_the_same_after_the_bad_requests(whole):
    def text() -> str:
        answer = ask(whole, "/v1/completions", {**HELLO, "max_tokens": 20, "temperature": 0}, headers=BEARER)
        assert answer.status == 200
        return str(json.loads(answer.body)["choices"][0]["text"])

    before = text()
    for bad in BAD_REQUESTS[::7]:
        ask(whole, bad.path, bad.body, method=bad.method, headers={**BEARER, **dict(bad.headers)})
    assert text() == before


def test_a_streamed_request_is_refused_like_any_other(client):
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=MODEL, prompt="x " * 500, stream=True)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=[{"role": "user", "content": "a"}], stream=True)


def test_a_prompt_may_leave_one_token_of_the_context_or_none_if_it_is_only_scored(client):
    answer = answered(client.completions, prompt=[5] * (CONTEXT - 1), temperature=0)
    assert answer.usage.completion_tokens == 1
    scored = answered(client.completions, prompt=[5] * CONTEXT, max_tokens=0, echo=True, logprobs=0)
    assert len(scored.choices[0].logprobs.token_logprobs) == CONTEXT
