"""Capacity: whether the application has room for one more request, known at the gate without asking it.

A refusal from behind Ray Serve costs its processes as much as an answer, so that under heavy load the refusals would
wait for each other. The application says how many requests it takes when it asks for a body
(`endpoint/http/bodies.py`); the gate counts, and refuses the rest. It refuses only callers whose key was good when
it was last checked: callers with no key, or with an unknown one, are answered by the application.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from hashlib import sha256

from starlette.types import Message, Scope, Send

from endpoint.http.events import DONE

NAMED_EVENTS = "/v1/responses"  # whose streams have events with names
GENERATING = frozenset({"/v1/completions", "/v1/chat/completions", NAMED_EVENTS})
_MAX_CALLERS = 4096  # that are remembered
_UNREAD_S = 5.0  # a part of an answer may wait for its client so long; the engine has finished long before


class Capacity:
    """The requests in flight behind one gate, and how many there may be."""

    def __init__(self) -> None:
        self.in_flight: set[Claim] = set()
        self._max_in_flight = float("inf")  # until the application says it
        self._callers: OrderedDict[bytes, None] = OrderedDict()  # known to have a good key; the latest is the last
        self._refused: Counter[str] = Counter()  # by path, those that the application has not been told of

    def claim(self, scope: Scope, path: str) -> Claim | None:
        """Return the claim of a request for this path of the application; None if there is no room for it."""
        claim = Claim(self, scope, path)
        if claim.caller in self._callers:
            if claim.counts and len(self.in_flight) >= self._max_in_flight:
                self._refused[path] += 1
                return None
            claim.take()
        return claim

    def take_refused(self) -> dict[str, int]:
        """Return how many requests were refused since the last call, by path, for `num_refused_at_gate`."""
        refused, self._refused = dict(self._refused), Counter()
        return refused

    def confirm(self, claim: Claim, max_requests: int | None) -> None:
        """Record that the application asked for the body: the key is good, and it takes `max_requests` in all."""
        self._callers[claim.caller] = None
        self._callers.move_to_end(claim.caller)
        if len(self._callers) > _MAX_CALLERS:
            self._callers.popitem(last=False)
        self._max_in_flight = float("inf") if max_requests is None else max_requests
        claim.take()

    def forget(self, claim: Claim) -> None:
        """Record that the application answered without asking for the body: the key may not be good any more."""
        self._callers.pop(claim.caller, None)
        claim.release()


class Claim:
    """One request's share of the capacity, held from `take` to `release`."""

    def __init__(self, capacity: Capacity, scope: Scope, path: str) -> None:
        self.counts = scope["method"] == "POST" and path in GENERATING
        self.caller = sha256(b"\n".join(v for k, v in scope["headers"] if k.lower() == b"authorization")).digest()
        self.capacity = capacity

    def take(self) -> None:
        """Count the request as in flight, if it is of a kind that counts."""
        if self.counts:
            self.capacity.in_flight.add(self)

    def releasing(self, send: Send) -> Send:
        """Return a `send` that releases the claim with the end of the answer, before the client can ask again.

        A client that does not read its answer loses the claim after `_UNREAD_S`.
        """

        async def send_and_release(message: Message) -> None:
            is_body, is_last = message["type"] == "http.response.body", not message.get("more_body", False)
            if is_body and (is_last or message.get("body", b"").endswith(DONE)):
                self.release()
            late = asyncio.get_running_loop().call_later(_UNREAD_S, self.release)
            try:
                await send(message)
            finally:
                late.cancel()

        return send_and_release

    def release(self) -> None:
        """Count the request as over."""
        self.capacity.in_flight.discard(self)
