"""Headers: the request's id, the names of hosts, and the headers by which a client could steer Ray Serve.

Ray Serve 2.60 obeys the client: `x-request-timeout-seconds` replaces the server's own time limit (0 removes it), and
`x-request-disconnect-disabled` lets it go on generating for a client that has left. Both are read in its proxy, before
the application (`ray/serve/_private/proxy.py`, `send_request_to_replica`). So the gate removes them in front of the
proxy (`endpoint/gate/gate.py`). If one reaches the application, there is no gate, and the request is refused.

A page of another site can give its own name the address 127.0.0.1 (DNS rebinding). To a browser that name is then the
page's own site, whose answers it may read; only the Host header tells it from this machine.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection

from starlette.datastructures import MutableHeaders
from starlette.types import Message, Scope, Send

from endpoint.http.bodies import Limits
from endpoint.http.errors import CLOSE, ApiError

STEERING_HEADERS = frozenset({b"x-request-timeout-seconds", b"x-request-disconnect-disabled"})
ROUTING_HEADERS = frozenset({b"serve_multiplexed_model_id", b"serve-multiplexed-model-id", b"x-session-id"})
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._~:+/=@-]{1,128}")
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})


def check_headers(scope: Scope, limits: Limits) -> None:
    """Raise ApiError for a malformed id (400), a steering header (400), a long URL (414) and large headers (431)."""
    headers, ids = scope["headers"], _request_ids(scope)
    if len(ids) > 1 or not all(map(_REQUEST_ID.fullmatch, ids)):
        raise ApiError(400, "x-request-id must be 1 to 128 letters, digits or . _ ~ : + / = @ -, and be there once.")
    if steering := sorted(name.lower().decode() for name, _ in headers if name.lower() in STEERING_HEADERS):
        raise ApiError(400, f"The header {steering[0]} is not taken from clients.", param=steering[0])
    if len(scope.get("raw_path") or b"") + len(scope.get("query_string", b"")) > limits.max_header_bytes:
        raise ApiError(414, "The URL is too long.", headers=CLOSE)
    num_bytes = sum(len(name) + len(value) for name, value in headers)
    if num_bytes > limits.max_header_bytes or len(headers) > limits.max_headers:
        allowed = f"at most {limits.max_headers} headers of {limits.max_header_bytes} bytes in all"
        raise ApiError(431, f"The headers are too large: {allowed}.", headers=CLOSE)


def request_id_of(scope: Scope) -> str:
    """Return the client's own id of the request, in `x-request-id`, if it is well formed; otherwise a new one."""
    ids = _request_ids(scope)
    return str(ids[0].decode("ascii")) if len(ids) == 1 and _REQUEST_ID.fullmatch(ids[0]) else uuid.uuid4().hex


def with_request_id(send: Send, request_id: str) -> Send:
    """Return a `send` that puts the id on the answer, once, and tells browsers not to guess at types."""

    async def send_with_id(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            del headers["x-request-id"]
            headers["x-request-id"] = request_id
            headers["x-content-type-options"] = "nosniff"
        await send(message)

    return send_with_id


def _request_ids(scope: Scope) -> list[bytes]:
    return [value for name, value in scope["headers"] if name.lower() == b"x-request-id"]


def check_host(scope: Scope, names: Collection[str]) -> None:
    """Raise ApiError (403) unless the request has one Host header, with one of these names and any port."""
    hosts = [value.decode("latin-1") for name, value in scope["headers"] if name.lower() == b"host"]
    if [host_name(host) for host in hosts] not in ([name.lower()] for name in names):
        message = "The Host header is none of this endpoint's names; serve.allowed_hosts adds others."
        raise ApiError(403, message, code="host_not_allowed", headers=CLOSE)


def host_name(host: str) -> str:
    """Return the name in a Host header, without its port, in lower case."""
    name, separator, port = host.strip().lower().rpartition(":")
    return name if separator and port.isdigit() else host.strip().lower()
