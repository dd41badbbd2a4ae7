"""The Host header, by which an endpoint without keys tells this machine's clients from pages of other sites."""

from collections.abc import Iterator

import pytest

from endpoint.edge.headers import LOCAL_NAMES
from tests.endpoint.toy_app import toy_app
from tests.endpoint.web import ask, send_raw, served, status_of


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with served(toy_app(keys=None, hosts=LOCAL_NAMES | {"Box.example"})) as port:
        yield port


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:80", "LOCALHOST:1", "[::1]:8000", "[::1]", "box.example:9"])
def test_this_machines_names_and_those_that_are_allowed_are_answered(port, host):
    assert ask(port, "/v1/models/toy", headers={"host": host}).status == 200


@pytest.mark.parametrize(
    "host",
    ["rebound.example", "localhost.rebound.example", "127.0.0.1.rebound.example:80", "rebound:127.0.0.1", "", "::1"],
)
@pytest.mark.parametrize("path", ["/v1/models/toy", "/metrics", "/no/such/path"])
def test_another_name_is_refused_on_every_path_but_health(port, host, path):
    answer = ask(port, path, headers={"host": host})
    assert (answer.status, answer.error["code"]) == (403, "host_not_allowed")
    assert host == "" or host not in answer.error["message"]
    assert ask(port, "/health", headers={"host": host}).status == 200


def test_no_host_and_two_hosts_are_refused(port):
    assert status_of(send_raw(port, b"GET /v1/models/toy HTTP/1.0\r\n\r\n")) == 403
    twice = b"GET /v1/models/toy HTTP/1.1\r\nHost: localhost\r\nHost: rebound.example\r\nConnection: close\r\n\r\n"
    assert status_of(send_raw(port, twice)) in (400, 403)
