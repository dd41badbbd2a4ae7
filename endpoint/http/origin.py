"""Origin: what all processes that are asked for one answer have in common. The gate gives it to each of them.

An ingress that is asked after another one was lost writes the whole answer anew, since that is a function of the
request and of its origin. It sends only what the client does not have: beside the events of a stream an ingress tells
the gate how far their samples have come (`REACHED`, a key of the message with the events), and the gate tells the next
one (`endpoint/service/resumption.py`).

Owners: what belongs to an API key has a name that does not tell the key.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from starlette.requests import Request
from starlette.types import Scope

EXTENSION, REACHED = "dray.origin", "dray.reached"


@dataclass(frozen=True)
class Origin:
    """When a request came, what its seeds and ids are drawn from, and what was done for it. No client can write it."""

    created_ns: int = field(default_factory=time.time_ns)
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    used_s: float = 0.0  # of the request's time, by processes that were asked before
    attempt: int = 1  # how many ingresses have been asked, this one among them
    reached: Mapping[int, tuple[Any, ...]] = field(default_factory=dict)  # by samples of the stream that the client has

    @property
    def created(self) -> int:
        """The second in which the request came."""
        return self.created_ns // 10**9

    @property
    def call(self) -> str:
        """A name of the request that is the same in all attempts, and that no client can know."""
        return f"{self.draw('call', 2**128):032x}"

    def draw(self, what: str, below: int) -> int:
        """Return a number below a power of two that is the same each time, and that no client can know."""
        return int.from_bytes(sha256(self.secret + what.encode()).digest()) % below


def origin_of(scope: Scope) -> Origin:
    """Return the origin that the gate has given to a request, or a new one."""
    origin: Origin | None = (scope.get("extensions") or {}).get(EXTENSION)
    return origin or Origin()


def owner_of(key: bytes | None) -> str:
    """Return the name of what belongs to a key, a digest; "open" for an endpoint without keys."""
    return "open" if key is None else sha256(b"batches of " + key).hexdigest()[:32]


def owner_of_request(request: Request) -> str:
    """Return the owner that the edge has found for a request."""
    owner: str = getattr(request.state, "owner", owner_of(None))
    return owner
