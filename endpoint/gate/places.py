"""Places: at the gate, whether the application has room for one more request, without asking it.

A refusal from behind Ray Serve takes as much of its processes as an answer, so that under many requests at once the
refusals would wait for each other. The application says how many requests it takes when it asks for a body
(`endpoint/http/held_bodies.py`); the gate counts, and refuses what is beyond. Only callers whose key was good when it
was last checked are refused here; the application answers callers with no key, or with an unknown one.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from hashlib import sha256

from starlette.types import Message, Scope, Send

from endpoint.http.events import DONE

GENERATING = frozenset({"/v1/completions", "/v1/chat/completions"})
_MOST_CALLERS = 4096  # that are remembered
_UNREAD_S = 5.0  # that a part of an answer may wait for its client; the engine has long ended then


class Places:
    """Of one gate, which is one process's."""

    def __init__(self) -> None:
        self._num_taken, self._most_taken = 0, float("inf")  # the latter until the application says it
        self._callers: OrderedDict[bytes, None] = OrderedDict()  # the one that was let in last is the last
        self._refused: Counter[str] = Counter()  # by path, those that the application has not been told of

    def place_for(self, scope: Scope, path: str) -> Place | None:
        """Where the request for this path of the application may go on; None if it is to be refused."""
        place = Place(self, scope, path)
        if place.takes_one and self._num_taken >= self._most_taken and place.caller in self._callers:
            self._refused[path] += 1
            return None
        if place.caller in self._callers:
            place.take()
        return place

    def take_news(self) -> dict[str, int]:
        """How many were refused since this was asked last, by path, for the application (`refused_at_gate`)."""
        news, self._refused = dict(self._refused), Counter()
        return news

    def let_in(self, place: Place, most_requests: int | None) -> None:
        """The application has asked for the body: the key is good, and so many requests it takes in all."""
        self._callers[place.caller] = None
        self._callers.move_to_end(place.caller)
        if len(self._callers) > _MOST_CALLERS:
            self._callers.popitem(last=False)
        self._most_taken = float("inf") if most_requests is None else most_requests
        place.take()

    def forget(self, place: Place) -> None:
        """The application has answered without asking for the body: the key may not be good any more."""
        self._callers.pop(place.caller, None)
        place.leave()

    def move(self, by: int) -> None:
        """For a place."""
        self._num_taken += by


class Place:
    """Of one request."""

    def __init__(self, places: Places, scope: Scope, path: str) -> None:
        self.takes_one = scope["method"] == "POST" and path in GENERATING
        self.caller = sha256(b"\n".join(v for k, v in scope["headers"] if k.lower() == b"authorization")).digest()
        self._places, self._is_taken = places, False

    def take(self) -> None:
        """Count it, once."""
        if self.takes_one and not self._is_taken:
            self._is_taken = True
            self._places.move(1)

    def until_answered(self, send: Send) -> Send:
        """A `send` that leaves with the last of the answer, before the client can ask again.

        So it does for a client that does not read on.
        """

        async def send_and_leave(message: Message) -> None:
            is_body, is_last = message["type"] == "http.response.body", not message.get("more_body", False)
            if is_body and (is_last or message.get("body", b"").endswith(DONE)):
                self.leave()
            late = asyncio.get_running_loop().call_later(_UNREAD_S, self.leave)
            try:
                await send(message)
            finally:
                late.cancel()

        return send_and_leave

    def leave(self) -> None:
        """The request is over."""
        if self._is_taken:
            self._is_taken = False
            self._places.move(-1)
