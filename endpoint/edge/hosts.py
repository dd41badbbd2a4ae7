"""Host headers: which names a client may have reached an endpoint without keys by.

A page of another site can give its own name the address 127.0.0.1 (DNS rebinding). To a browser that name is then the
page's own site, whose answers it may read; only the Host header tells it from this machine.
"""

from __future__ import annotations

from collections.abc import Collection

from starlette.types import Scope

from endpoint.http.errors import ApiError
from endpoint.http.limits import CLOSE

LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})


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
