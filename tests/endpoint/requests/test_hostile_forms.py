"""Forms that are meant to do harm get an error of the client's, and never one of the server's."""

import json
from typing import Any

import pytest

from tests.endpoint.requests.bad_requests import CHAT, HI
from tests.endpoint.toy_app import BEARER
from tests.endpoint.web import ask

CIRCLE = {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a million letters": ({"regex": "(a{1000}){1000}"}, "structured.regex cannot be compiled: lexer error"),
    "a hundred million": ({"regex": "(((a{100}){100}){100}){100}"}, "structured.regex cannot be compiled: lexer error"),
    "a billion letters": ({"regex": "a{1000000000}"}, "structured.regex cannot be compiled: lexer error"),
    "a grammar in a circle": ({"grammar": "start: start"}, "structured: the grammar cannot be followed"),
    "references in a circle": ({"json": CIRCLE}, "structured: the grammar cannot be followed"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_hostile_form_is_a_mistake_of_its_request(whole: int, name: str) -> None:
    form, said = REFUSED[name]
    answer = ask(whole, CHAT, {**HI, "structured_outputs": form}, headers=BEARER)
    assert answer.status == 400, json.loads(answer.body)
    assert answer.error["message"].startswith(said)
