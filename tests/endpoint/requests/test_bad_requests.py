"""Every bad request of the table gets its whole error, and the server is as well afterwards as before."""

import json

import pytest

from tests.endpoint.bad_bodies import BAD_BODIES
from tests.endpoint.bad_chats import BAD_CHATS
from tests.endpoint.bad_completions import BAD_COMPLETIONS
from tests.endpoint.bad_requests import HELLO, Bad
from tests.endpoint.toy_app import BEARER
from tests.endpoint.web import ask

BAD_REQUESTS = [*BAD_COMPLETIONS, *BAD_CHATS, *BAD_BODIES]


@pytest.mark.parametrize("bad", BAD_REQUESTS, ids=[bad.name for bad in BAD_REQUESTS])
def test_a_bad_request_is_told_what_is_wrong_with_it(whole: int, bad: Bad) -> None:
    answer = ask(whole, bad.path, bad.body, method=bad.method, headers={**BEARER, **dict(bad.headers)})
    expected = {"message": bad.message, "type": "invalid_request_error", "param": bad.param, "code": bad.code}
    assert (answer.status, answer.error) == (bad.status, expected)
    (request_id,) = answer.request_ids
    assert len(request_id) == 32


def test_the_names_in_the_table_differ() -> None:
    assert len({bad.name for bad in BAD_REQUESTS}) == len(BAD_REQUESTS) > 200


def test_after_all_of_them_the_server_writes_what_it_wrote_before(whole: int) -> None:
    def text() -> str:
        answer = ask(whole, "/v1/completions", {**HELLO, "max_tokens": 20, "temperature": 0}, headers=BEARER)
        assert answer.status == 200
        return str(json.loads(answer.body)["choices"][0]["text"])

    before = text()
    for bad in BAD_REQUESTS[::7]:
        ask(whole, bad.path, bad.body, method=bad.method, headers={**BEARER, **dict(bad.headers)})
    assert text() == before
