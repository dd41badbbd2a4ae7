"""A process of the application whose engines an update has replaced: the gate asks another one, with the same body."""

from typing import Any

from starlette.types import Message, Receive, Scope, Send

from endpoint.gate.gate import Gate
from endpoint.http.bodies import ask_for_body
from endpoint.http.errors import model_replaced, refuse
from tests.endpoint.gate.eager_proxy import EagerProxy
from tests.endpoint.toy_app import LIMITS
from tests.endpoint.web import ask, served

TEXT = b"x" * LIMITS.max_body_bytes  # one more of them at once would be too much for the room that there is


class Updated:
    """The first processes that are asked have no engines any more; the next one echoes."""

    def __init__(self, num_replaced: int) -> None:
        self.num_asked, self._num_replaced = 0, num_replaced

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await ask_for_body(scope, send)
        message: Message = await receive()
        self.num_asked += 1
        if self.num_asked <= self._num_replaced:
            await refuse(send, model_replaced())
            return
        headers = [(b"content-length", b"%d" % len(message["body"]))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": message["body"]})


def test_another_ingress_gets_the_same_body_and_the_client_sees_only_its_answer():
    application = Updated(2)
    with served(Gate(EagerProxy(application), LIMITS)) as port:
        answer = ask(port, "/v1/completions", TEXT)
        assert (answer.status, answer.body, application.num_asked) == (200, TEXT, 3)
        for _ in range(2 * LIMITS.max_bodies):  # nothing of it is kept
            assert ask(port, "/v1/completions", TEXT).body == TEXT


def test_without_another_ingress_the_client_gets_a_503(monkeypatch):
    monkeypatch.setattr("endpoint.gate.gate._PATIENCE_S", 0)
    with served(Gate(EagerProxy(Updated(1)), LIMITS)) as port:
        answer: Any = ask(port, "/v1/completions", TEXT)
        assert (answer.status, answer.error["code"], answer.headers["retry-after"]) == (503, "model_unavailable", "1")
        assert not [name for name in answer.headers if name.startswith("x-dray")]
        assert ask(port, "/v1/completions", TEXT).body == TEXT
