"""Errors in the OpenAI form: they say what to change, and show nothing of the request or of the server."""

import logging
from http.client import HTTPConnection, IncompleteRead
from typing import Any

import pytest

from tests.endpoint.toy_app import BEARER, SECRET
from tests.endpoint.web import Answer, ask

MESSAGE = {"role": "user", "content": SECRET}
UNKNOWN, REQUIRED = "there is no such field", "is required"
CODES = {UNKNOWN: "unknown_parameter", REQUIRED: "missing_required_parameter"}  # others are "invalid_value"


def question(**fields: Any) -> dict[str, Any]:
    """Return a body that is right without these fields."""
    return {"messages": [MESSAGE], **fields}


INVALID: dict[str, tuple[Any, str, str]] = {  # the body, the wrong field, and what it must be
    "an empty object": ({}, "messages", REQUIRED),
    "null for a list": ({"messages": None}, "messages", "expected a list"),
    "an unknown role": (
        {"messages": [MESSAGE, {"role": SECRET, "content": ""}]},
        "messages[1].role",
        'expected "user" or "system"',
    ),
    "no content": ({"messages": [{"role": "user"}]}, "messages[0].content", REQUIRED),
    "an unknown name": (question(tools=[SECRET]), "tools", UNKNOWN),
    "an unknown name inside": ({"messages": [{**MESSAGE, "name": SECRET}]}, "messages[0].name", UNKNOWN),
    "a string for a number": (question(n=SECRET), "n", "expected an integer"),
}


@pytest.mark.parametrize(("body", "param", "what"), INVALID.values(), ids=INVALID.keys())
def test_an_error_names_the_wrong_field_and_what_it_must_be(toy, body, param, what):
    answer = ask(toy, "/v1/ask", body, headers=BEARER)
    assert answer.status == 400
    assert answer.error == {
        "message": f"{param}: {what}",
        "type": "invalid_request_error",
        "param": param,
        "code": CODES.get(what, "invalid_value"),
    }
    assert SECRET.encode() not in answer.body


def test_unknown_paths_and_methods_are_answered_in_the_same_form(toy):
    missing = ask(toy, f"/v1/{SECRET}", headers=BEARER)
    assert (missing.status, missing.error["code"]) == (404, "unknown_url")
    method = ask(toy, "/v1/ask", headers=BEARER, method="DELETE")
    assert (method.status, method.error["code"], method.headers["allow"]) == (405, "method_not_allowed", "POST")
    for answer in (missing, method):
        assert SECRET.encode() not in answer.body


def test_an_error_of_ours_keeps_its_status_type_and_headers(toy):
    answer = ask(toy, "/v1/busy", {"messages": [MESSAGE]}, headers=BEARER)
    assert (answer.status, answer.error["type"], answer.headers["retry-after"]) == (429, "rate_limit_error", "1")


def test_an_http_error_of_the_framework_does_not_show_its_detail(toy):
    answer = ask(toy, "/v1/teapot", {"messages": [MESSAGE]}, headers=BEARER)
    assert (answer.status, answer.error["message"]) == (418, "The request cannot be answered.")
    assert SECRET.encode() not in answer.body


def test_a_failure_is_a_500_with_the_request_id_and_nothing_from_the_request(toy, caplog):
    with caplog.at_level(logging.DEBUG):
        answer = ask(toy, "/v1/fail", {"messages": [MESSAGE]}, headers={**BEARER, "x-request-id": "trace-me"})
    assert answer.status == 500
    assert answer.error["type"] == "server_error"
    assert "trace-me" in answer.error["message"]
    assert answer.request_ids == ("trace-me",)
    (line,) = [record.getMessage() for record in caplog.records if "request failed" in record.getMessage()]
    assert "request_id=trace-me" in line
    assert "route=/v1/fail" in line
    assert '["RuntimeError", "KeyError"]' in line
    assert "toy_app.py" in line, "where it was raised"
    shown = [answer.body.decode(), *(record.getMessage() + str(record.exc_info) for record in caplog.records)]
    assert not [text for text in shown if SECRET in text or "Traceback" in text]
    assert "toy_app.py" not in answer.body.decode()


def test_an_answer_that_fails_after_it_has_begun_is_cut_off(toy, caplog):
    connection = HTTPConnection("127.0.0.1", toy, timeout=30)
    body = b'{"messages": [{"role": "user", "content": "%s"}]}' % SECRET.encode()
    with caplog.at_level(logging.DEBUG):
        connection.request("POST", "/v1/break", body, {**BEARER, "content-type": "application/json"})
        response = connection.getresponse()
        assert response.status == 200
        with pytest.raises(IncompleteRead):
            response.read()
    connection.close()
    assert SECRET not in caplog.text


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/openapi.json", "/docs/oauth2-redirect"])
def test_documentation_is_served_only_if_it_is_switched_on(toy, path):
    assert ask(toy, path, headers=BEARER).status == 404


def cors(answer: Answer) -> list[str]:
    return [name for name in answer.headers if name.startswith("access-control-")]


def test_other_origins_get_no_permission(toy):
    origin = {"origin": "https://elsewhere.example", "access-control-request-method": "POST"}
    assert not cors(ask(toy, "/v1/models/a", headers={**BEARER, **origin}))
    preflight = ask(toy, "/v1/ask", headers=origin, method="OPTIONS")
    assert preflight.status == 401
    assert not cors(preflight)
