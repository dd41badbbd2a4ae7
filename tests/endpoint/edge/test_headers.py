"""Request ids, and the headers of Ray Serve that no client may set."""

import pytest

from tests.endpoint.toy_app import BEARER
from tests.endpoint.web import ask


@pytest.mark.parametrize(
    "request_id",
    ["a", "0f8fad5b-d9cb-469f-a165-70867728950e", "1-67891233-abcdef012345678912345678", "x" * 128, "a=b/c+d@e:f~g"],
)
def test_a_request_id_is_returned_unchanged(toy, request_id):
    assert ask(toy, "/health", headers={"X-Request-Id": request_id}).request_ids == (request_id,)


@pytest.mark.parametrize("request_id", ["", "a b", "ü", "x" * 129, 'a"b', "<script>", "a\tb", "{}", "a;b"])
def test_a_malformed_request_id_is_refused_and_not_returned(toy, request_id):
    answer = ask(toy, "/health", headers={"x-request-id": request_id})
    assert answer.status == 400
    assert answer.error["message"].startswith("x-request-id must be 1 to 128 letters")
    assert answer.request_ids != (request_id,)


def test_every_answer_has_a_request_id(toy):
    statuses = {
        200: ask(toy, "/health"),
        400: ask(toy, "/v1/ask", {}, headers=BEARER),
        401: ask(toy, "/v1/ask"),
        404: ask(toy, "/no", headers=BEARER),
        413: ask(toy, "/v1/ask", b" " * 30_000, headers=BEARER),
        431: ask(toy, "/health", headers={"x-long": "x" * 5000}),
    }
    assert {status: answer.status for status, answer in statuses.items()} == {status: status for status in statuses}
    ids = [request_id for answer in statuses.values() for request_id in answer.request_ids]
    assert len(ids) == len(set(ids)) == len(statuses)
    assert all(answer.headers["x-content-type-options"] == "nosniff" for answer in statuses.values())
