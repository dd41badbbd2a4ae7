"""Streams that another ingress goes on with when the one that wrote them is lost.

Beside each event an ingress tells the gate, by an ASGI message of our own, which deltas of the engine the event was
made of. The gate keeps them with the request. An ingress that is asked to go on makes the same events of the same
deltas, and continues behind them; the gate lets through what the client does not have yet. For the events to be the
same, byte for byte, whatever differs between processes comes from the gate: when the answer was begun, and what its
seeds and ids are drawn from.
"""

from __future__ import annotations

import pickle
import secrets
import time
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from starlette.types import Message, Scope

TOLD, EXTENSION = "dray.stream.told", "dray.origin"


@dataclass(frozen=True)
class Origin:
    """What all processes that are asked for one answer have in common. It never comes from a client."""

    created_ns: int = field(default_factory=time.time_ns)
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    told: tuple[bytes, ...] = ()  # by the process that was lost, as it wrote them
    keeps: bool = False  # whether the gate keeps what it is told
    attempt: int = 1  # the number of the process among those that were asked
    used_s: float = 0.0  # of the request's time, by those before it

    @property
    def created(self) -> int:
        """The second in which the request came."""
        return self.created_ns // 10**9

    @property
    def call(self) -> str:
        """The name of the request between our processes."""
        return self.draw("call", 2**128).to_bytes(16).hex()

    def draw(self, what: str, below: int) -> int:
        """Return a number below a power of two that is the same each time, and that no client can know."""
        return int.from_bytes(sha256(self.secret + what.encode()).digest()) % below

    def earlier(self) -> list[Any]:
        """Return what was told."""
        return [pickle.loads(each) for each in self.told]


class Telling:
    """What an ingress has to tell the gate before its next event."""

    def __init__(self, *, is_on: bool) -> None:
        """Tell nothing unless the gate keeps it and another process could go on."""
        self._is_on, self._new = is_on, list[Any]()

    def add(self, deltas: Seq[Any]) -> None:
        """Add deltas of which the next events are made."""
        if self._is_on:
            self._new.append(deltas)

    def message(self) -> Message | None:
        """Return the message to send now, if there is one."""
        if not self._new:
            return None
        new, self._new = self._new, []
        return {"type": TOLD, "deltas": pickle.dumps(new)}


def origin_of(scope: Scope) -> Origin:
    """Return the origin that the gate has given to a request, or a new one."""
    origin: Origin | None = (scope.get("extensions") or {}).get(EXTENSION)
    return origin or Origin()
