"""Ingresses that are lost: another one is asked where nothing was sent, and what was begun ends with an error."""

from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from endpoint.gate.gate import Gate
from endpoint.http.bodies import ask_for_body
from tests.endpoint.gate.eager_proxy import EagerProxy
from tests.endpoint.toy_app import LIMITS
from tests.endpoint.web import Answer, ask, served

TEXT = b"x" * 1000
EVENT = b'data: {"choices": []}\n\n'


class Fragile:
    """An application whose first `num_lost` processes end at some point, as Serve's proxy shows it: by no message.

    The point is "before" it asks for the body, "after" that, or with an answer's "start" or first "part" sent.
    """

    def __init__(self, num_lost: int, point: str, content_type: bytes = b"text/event-stream; charset=utf-8") -> None:
        self.num_asked, self._num_lost, self._point, self._content_type = 0, num_lost, point, content_type

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.num_asked += 1
        dies_at = self._point if self.num_asked <= self._num_lost else None
        if dies_at == "before":
            return
        await ask_for_body(scope, send)
        message: Message = await receive()
        if dies_at == "after":
            return
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", self._content_type)]})
        if dies_at == "start":
            return
        await send({"type": "http.response.body", "body": EVENT, "more_body": True})
        if dies_at == "part":
            return
        await send({"type": "http.response.body", "body": b"%d" % len(message["body"])})


def asked(application: Fragile, path: str = "/v1/completions", body: bytes | None = TEXT, **options: Any) -> Answer:
    with served(Gate(EagerProxy(application), LIMITS)) as port:
        return ask(port, path, body, **options)


@pytest.mark.parametrize("point", ["before", "after", "start"])
@pytest.mark.parametrize(("path", "body"), [("/v1/completions", TEXT), ("/tokenize", TEXT), ("/v1/models", None)])
def test_another_ingress_is_asked_where_nothing_of_the_answer_was_sent(point, path, body):
    application = Fragile(1, point)
    answer = asked(application, path, body)
    assert (answer.status, application.num_asked) == (200, 2)
    assert answer.body == EVENT + b"%d" % len(body or b"")


@pytest.mark.parametrize(
    ("path", "is_named"), [("/v1/completions", False), ("/v1/chat/completions", False), ("/v1/responses", True)]
)
def test_a_stream_that_was_begun_ends_with_an_error_event(path, is_named):
    application = Fragile(1, "part")
    answer = asked(application, path)
    assert (answer.status, application.num_asked) == (200, 1)
    last = answer.body.removeprefix(EVENT)
    assert last.startswith(b"event: error\ndata: {" if is_named else b"data: {")
    assert b'"code":"ingress_lost"' in last
    assert last.endswith(b"}\n\n")


def test_the_connection_of_another_answer_that_was_begun_is_closed():
    with pytest.raises(Exception, match="IncompleteRead"):
        asked(Fragile(1, "part", b"application/json"))


def test_a_request_that_two_ingresses_were_lost_over_is_not_given_a_third():
    application = Fragile(9, "after")
    answer = asked(application)
    assert (answer.status, answer.error["code"], application.num_asked) == (500, "ingress_lost", 2)


@pytest.mark.parametrize(
    ("path", "body", "method", "code"),
    [("/v1/files", TEXT, "POST", "ingress_lost"), ("/v1/files/file-1", None, "DELETE", "model_unavailable")],
)
def test_what_an_ingress_had_begun_and_cannot_be_asked_again_is_for_the_client_to_repeat(path, body, method, code):
    application = Fragile(1, "after")
    answer = asked(application, path, body, method=method)
    assert (answer.status, answer.error["code"], application.num_asked) == (503, code, 1)
    assert answer.headers["retry-after"] == "1"
    if body is not None:
        application = Fragile(3, "before")
        assert (asked(application, path, body, method=method).status, application.num_asked) == (200, 4)


def test_what_changes_nothing_the_second_time_is_asked_for_again():
    for path, body in (("/v1/batches", TEXT), ("/v1/batches/batch_1/cancel", None)):
        application = Fragile(1, "after")
        assert (asked(application, path, body, method="POST").status, application.num_asked) == (200, 2)
    application = Fragile(1, "after")
    assert asked(application, "/v1/batches/batch_1/other", None, method="POST").status == 503


def test_without_an_ingress_for_too_long_the_client_gets_a_503(monkeypatch):
    monkeypatch.setattr("endpoint.gate.gate._PATIENCE_S", 0.3)
    application = Fragile(10_000, "before")
    answer = asked(application)
    assert (answer.status, answer.error["code"]) == (503, "model_unavailable")
    assert application.num_asked > 1


@pytest.mark.parametrize("method", ["GET", "OPTIONS", "POST"])
@pytest.mark.parametrize("target", ["*", "example.org:443"])
def test_a_target_that_is_no_path_is_a_400(method, target):
    application = Fragile(0, "")
    answer = asked(application, target, TEXT if method == "POST" else None, method=method)
    assert (answer.status, application.num_asked) == (400, 0)
