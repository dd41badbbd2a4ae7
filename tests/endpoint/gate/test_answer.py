"""The gate's answers for Serve's proxy, which is played by an application that answers as the proxy does."""

from collections.abc import Iterator

import pytest
from starlette.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from endpoint.gate.gate import Gate
from endpoint.http.bodies import Limits
from tests.endpoint.web import ask, served


async def proxy(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer by the path."""
    match scope["path"]:
        case "/text":
            await PlainTextResponse("all is well")(scope, receive, send)
        case "/json":
            await JSONResponse({"error": "of the application"}, 503)(scope, receive, send)
        case "/stream":
            await StreamingResponse(iter(["a", "b"]), media_type="text/event-stream")(scope, receive, send)
        case "/-/healthz":
            await PlainTextResponse("draining", 503)(scope, receive, send)
        case "/nothing":
            return
        case path:
            await PlainTextResponse(f"Path '{path}' not found: secret", int(path[1:]))(scope, receive, send)


@pytest.fixture(scope="module")
def gate() -> Iterator[int]:
    with served(Gate(proxy, Limits())) as port:
        yield port


@pytest.mark.parametrize("path", ["/404", "/429", "/500", "/503", "/nothing"])
def test_the_proxys_own_errors_say_that_the_model_is_not_available(gate, path):
    answer = ask(gate, path)
    assert (answer.status, answer.error["code"], answer.headers["retry-after"]) == (503, "model_unavailable", "1")
    assert b"secret" not in answer.body
    assert len(answer.request_ids) == 1


def test_the_applications_answers_are_passed_on_unchanged(gate):
    assert ask(gate, "/text").body == b"all is well"
    assert (ask(gate, "/json").status, ask(gate, "/json").body) == (503, b'{"error":"of the application"}')
    assert ask(gate, "/stream").body == b"ab"


def test_serves_health_answer_is_passed_on_unchanged(gate):
    assert (ask(gate, "/-/healthz").status, ask(gate, "/-/healthz").body) == (503, b"draining")
