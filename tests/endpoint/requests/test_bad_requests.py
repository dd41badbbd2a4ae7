"""Bad requests: each one of the table gets its whole error, and the server works as before."""

import json

import openai
import pytest

from tests.endpoint.in_process import CONTEXT, MODEL, answered
from tests.endpoint.requests.bad_chats import BAD_CHATS
from tests.endpoint.requests.bad_completions import BAD_COMPLETIONS
from tests.endpoint.requests.bad_requests import (
    CHAT,
    COMPLETE,
    HELLO,
    MESSAGE,
    OUTSIDE,
    TOKEN_ID,
    UNKNOWN,
    Bad,
    field,
    no_json,
    no_model,
    no_route,
    shared,
)
from tests.endpoint.toy_app import BEARER
from tests.endpoint.web import ask

TOO_DEEP = (
    "the body is nested deeper than 32 levels here; use fewer levels; a JSON Schema may name its inner parts in $defs"
)
REQUIRED = "is required", "missing_required_parameter"
ONE = "give a prompt or messages, and not both"
TOO_LONG = "expected at most 512 token ids, which is this model's context, got 513", "context_length_exceeded"
NOT_TAKEN = "The header {} is not taken from clients."
ID = "x-request-id must be 1 to 128 letters, digits or . _ ~ : + / = @ -, and be there once."

BAD_BODIES = [
    field("no prompt", COMPLETE, {"max_tokens": 2}, "prompt", *REQUIRED),
    field("no messages", CHAT, {"max_tokens": 2}, "messages", *REQUIRED),
    field("tokenize nothing", "/tokenize", {}, "prompt", ONE),
    field("tokenize both", "/tokenize", {"prompt": "a", "messages": [MESSAGE]}, "prompt", ONE),
    field("tokenize a number", "/tokenize", {"prompt": 1}, "prompt", "expected a string"),
    field("tokenize with a field that is none", "/tokenize", {"prompt": "a", "x": 1}, "x", *UNKNOWN),
    no_model("/tokenize", {"prompt": "a", "model": "b"}, "b"),
    field("detokenize nothing", "/detokenize", {}, "tokens", *REQUIRED),
    field("detokenize text", "/detokenize", {"tokens": "a"}, "tokens", "expected a list"),
    field("detokenize a negative id", "/detokenize", {"tokens": [1, -1]}, "tokens[1]", TOKEN_ID),
    field("detokenize an id beyond the vocabulary", "/detokenize", {"tokens": [100_000]}, "tokens", OUTSIDE),
    field("detokenize a fraction", "/detokenize", {"tokens": [1.5]}, "tokens[0]", TOKEN_ID),
    field("detokenize more than the context", "/detokenize", {"tokens": [1] * 513}, "tokens", *TOO_LONG),
    Bad("no body", COMPLETE, b"", 400, "the body: is required", None, "missing_required_parameter"),
    no_json("a field twice", b'{"prompt": 1, "prompt": 2}', "The body has the same key twice in one object.", "prompt"),
    no_json("a million arrays", b'{"prompt": ' + b"[" * 1_000_000, f"prompt: {TOO_DEEP}", "prompt"),
    no_route("a path that is none", "/v1/embeddings", {"input": "a"}, 404),
    no_route("a path with a slash too many", COMPLETE + "/", {"prompt": "a"}, 404),
    no_route("a path of no version", "/completions", {"prompt": "a"}, 404),
    no_route("GET of a completion", COMPLETE, None, 405, method="GET"),
    no_route("POST to the models", "/v1/models", {}, 405),
    no_route("DELETE of a model", "/v1/models/some/pair", None, 405, method="DELETE"),
    no_model("/v1/models/other", None, "other"),
    no_model("/v1/models/..%2f..%2fetc%2fpasswd", None, "../../etc/passwd"),
    no_model("/v1/models/../../etc/passwd", None, "../../etc/passwd"),
    no_model("/v1/models/%00", None, "\\x00"),
    no_model("/v1/models/%ff", None, "\\ufffd"),
    no_model("/v1/models/", None, ""),
    *(
        Bad(name, COMPLETE, {"prompt": "a"}, 400, NOT_TAKEN.format(name), name, None, headers=((name, "?1"),))
        for name in ("x-request-timeout-seconds", "x-request-disconnect-disabled")
    ),
    Bad("a strange id", COMPLETE, {"prompt": "a"}, 400, ID, None, None, headers=(("x-request-id", "a b"),)),
]


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
