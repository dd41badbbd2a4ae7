"""API keys: every path is closed without one, and no key is ever shown."""

import hmac
import logging
from typing import Any

import pytest
from starlette.websockets import WebSocket

from endpoint.app import create_app
from endpoint.edge.headers import Keys, load_keys
from endpoint.edge.install import HEALTH_PATHS, EdgeSettings, install
from endpoint.edge.page import PATHS as PAGE_PATHS
from endpoint.service.metrics import ServingMetrics
from endpoint.service.service import Models, Service, ServiceSettings
from tests.endpoint.toy_app import BEARER, KEY, OTHER_KEY, toy_app
from tests.endpoint.web import ask, send_raw, served, status_of

UNKNOWN_PATHS = [
    "/",
    "/no/such/path",
    "/v1",
    "/v1/models/../health",
    "/health/",
    "/health/ready/",
    "/health/../metrics",
    "//health",
    "/%68ealth/x",
    "/HEALTH",
    "/-/routes",
]
WRONG = {
    "nothing": {},
    "no scheme": {"authorization": KEY},
    "another scheme": {"authorization": f"Basic {KEY}"},
    "no key": {"authorization": "Bearer"},
    "spaces for a key": {"authorization": "Bearer    "},
    "all but its last character": {"authorization": f"Bearer {KEY[:-1]}"},
    "one character more": {"authorization": f"Bearer {KEY}x"},
    "in capitals": {"authorization": f"Bearer {KEY.upper()}"},
    "two keys": {"authorization": f"Bearer {KEY} {OTHER_KEY}"},
    "not ASCII": {"authorization": "Bearer sk-öne-that-is-right"},
    "long": {"authorization": "Bearer " + KEY * 100},
    "its digest": {"authorization": "Bearer " + __import__("hashlib").sha256(KEY.encode()).hexdigest()},
    "in another header": {"x-api-key": KEY, "api-key": KEY, "cookie": f"key={KEY}"},
}


class Well:
    """An engine of which nothing but its health is asked."""

    async def check_health(self) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was asked without a key")


@pytest.mark.parametrize("path", UNKNOWN_PATHS)
def test_an_unknown_path_is_closed_without_a_key(toy, path):
    assert ask(toy, path).error["code"] == "missing_api_key"


def test_every_route_but_health_is_closed_without_a_key():
    """The routes of the application itself, over an engine that is healthy."""
    metrics = ServingMetrics("m")
    app = create_app(Models(Service(ServiceSettings(model="m"), NotImplemented, Well(), metrics)), has_docs=True)
    install(app, EdgeSettings(keys=Keys([KEY]), has_page=True, has_docs=True), metrics)
    paths = {str(getattr(route, "path", "")).replace("{model:path}", "a/b") for route in app.routes}
    assert {"/v1/completions", "/v1/chat/completions", "/v1/models/a/b", "/tokenize", "/metrics", "/docs"} <= paths
    assert {"/openapi.json", "/", *HEALTH_PATHS} <= paths
    with served(app) as port:
        for path in paths:
            for method in ("GET", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"):
                is_public = method == "GET" and path in (*HEALTH_PATHS, *PAGE_PATHS)
                assert (ask(port, path, method=method).status == 401) is not is_public, (method, path)


@pytest.mark.parametrize("headers", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_key_gets_a_401_that_says_how_to_send_one(toy, headers):
    answer = ask(toy, "/v1/models/a", headers=headers)
    assert answer.status == 401
    assert answer.error["type"] == "invalid_request_error"
    assert answer.headers["www-authenticate"].startswith("Bearer")


def test_two_authorization_headers_open_nothing(toy):
    line = f"Authorization: Bearer {KEY}\r\n".encode()
    request = b"GET /v1/models/a HTTP/1.1\r\nHost: h\r\nConnection: close\r\n%s\r\n"
    assert status_of(send_raw(toy, request % line)) == 200
    assert status_of(send_raw(toy, request % (line * 2))) == 401


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
@pytest.mark.parametrize("key", [KEY, OTHER_KEY])
def test_every_key_is_accepted_under_every_spelling_of_the_scheme(toy, scheme, key):
    assert ask(toy, "/v1/models/a", headers={"authorization": f"{scheme} {key}"}).status == 200


def test_the_endpoint_is_open_only_if_it_is_told_to_have_no_keys():
    with served(toy_app(keys=None)) as port:
        assert ask(port, "/v1/models/a").status == 200
    with pytest.raises(ValueError, match="no API key"):
        Keys([])


def test_a_key_is_compared_with_all_keys_in_constant_time(monkeypatch):
    compared: list[tuple[bytes, bytes]] = []
    real = hmac.compare_digest

    def compare(left: bytes, right: bytes) -> bool:
        compared.append((left, right))
        return real(left, right)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    keys = Keys([KEY, OTHER_KEY, "sk-a-third-that-is-right"])
    for given in (KEY, OTHER_KEY, "no"):
        compared.clear()
        assert keys.has(given.encode()) is (given != "no")
        assert len(compared) == 3
        assert all(len(left) == len(right) == 32 for left, right in compared), "digests, whatever the length of the key"


def test_a_websocket_is_closed_before_it_opens():
    app = toy_app(keys=Keys([KEY]))

    @app.websocket("/v1/socket")
    async def socket(websocket: WebSocket) -> None:
        await websocket.accept()

    request = (
        b"GET /v1/socket HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    with served(app) as port:
        assert status_of(send_raw(port, request)) == 403


def test_keys_come_from_files_and_variables(tmp_path, monkeypatch):
    file = tmp_path / "keys"
    file.write_text(f"# ours\n{KEY}\n\n  sk-with-spaces-around  \r\n")
    monkeypatch.setenv("SOME_KEYS", f"{OTHER_KEY}, {KEY}")
    monkeypatch.setenv("HOME", str(tmp_path))
    keys = load_keys(["~/keys"], ["SOME_KEYS"])
    assert len(keys) == 3
    assert all(keys.has(key) for key in (KEY.encode(), OTHER_KEY.encode(), b"sk-with-spaces-around"))
    assert not keys.has(b"# ours")


def test_a_missing_file_or_variable_is_named(tmp_path):
    with pytest.raises(ValueError, match="nowhere cannot be read: FileNotFoundError"):
        load_keys([tmp_path / "nowhere"])
    with pytest.raises(ValueError, match="NOT_SET"):
        load_keys(variables=["NOT_SET"])


@pytest.mark.parametrize("text", ["short", "sk-with a space in it", "sk-öne-that-is-right", "x" * 600, "", "# only\n"])
def test_a_malformed_key_is_refused_without_being_shown(tmp_path, text):
    file = tmp_path / "keys"
    file.write_text(text)
    with pytest.raises(ValueError, match="keys") as refused:
        load_keys([file])
    assert not text or text not in str(refused.value)
    assert refused.value.__cause__ is None


def test_no_key_is_logged_or_shown(toy, caplog):
    tried = "sk-wrong-but-somebody-elses"
    with caplog.at_level(logging.DEBUG):
        ask(toy, "/v1/models/a", headers=BEARER)
        answer = ask(toy, "/v1/models/a", headers={"authorization": f"Bearer {tried}"})
    assert any("key refused" in record.getMessage() for record in caplog.records)
    assert answer.error["code"] == "invalid_api_key"
    for shown in [*(record.getMessage() for record in caplog.records), answer.body.decode(), repr(Keys([KEY]))]:
        assert tried not in shown
        assert KEY not in shown
