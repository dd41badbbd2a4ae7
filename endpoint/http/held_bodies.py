"""A body that stays where it is until the application asks for it: who has no key is answered without.

Ray Serve's proxy takes in what comes, whether its application wants it or not. So the gate before it holds the body
back, and says so to the application behind in the ASGI scope; that looks at the key, and sends a message of a kind of
our own back through the proxy when it wants the body. Both tell each other of what they refuse, too
(`endpoint/gate/places.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.types import Message, Receive, Scope, Send

from endpoint.http.bodies import Bodies, Incoming, header
from endpoint.http.errors import ApiError

_EXTENSION, _WANTED = "dray.body_on_demand", "dray.body.wanted"


def has_body(scope: Scope) -> bool:
    """Whether the request announces one."""
    return header(scope, b"content-length") not in (None, b"0") or header(scope, b"transfer-encoding") is not None


def is_held_back(scope: Scope) -> bool:
    """Whether the body is, until it is asked for."""
    return _EXTENSION in (scope.get("extensions") or {})


async def ask_for_body(scope: Scope, send: Send, most_requests: int | None = None) -> None:
    """Of the application: let the body come, if it is held back. So many requests it generates for at once."""
    if is_held_back(scope):
        await send({"type": _WANTED, "most_requests": most_requests})


def refused_at_gate(scope: Scope) -> dict[str, int]:
    """Of the application: how many requests were refused at the gate since it said so last, by path."""
    told: dict[str, int] = (scope.get("extensions") or {}).get(_EXTENSION, {}).get("refused", {})
    return told


class BodyOnDemand:
    """One request's body, at the gate."""

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        bodies: Bodies,
        let_in: Callable[[int | None], None],
        refused: dict[str, int],
    ) -> None:
        """`let_in` is called when the application wants the body, with how many requests it takes.

        It is told how many were `refused` of each path.
        """
        self._let_in, self._refused = let_in, refused
        self.incoming = Incoming(receive)
        self.error: ApiError | None = None  # why the body was not taken, though it was wanted
        self._own_scope, self._receive, self._bodies = scope, receive, bodies
        self._wanted = asyncio.Event()
        self._is_handed_on = False
        self._body: bytes | None = None  # once it is here, until `let_go`

    @property
    def is_wanted(self) -> bool:
        """Whether the application has asked."""
        return self._wanted.is_set()

    def hold_back_again(self) -> None:
        """For another process of the application, which is to be asked what this one was."""
        self._wanted.clear()
        self._is_handed_on, self._refused = False, {}

    def let_go(self) -> None:
        """Nobody else will be asked."""
        if self._body is not None:
            self._bodies.let_go(self._body)
            self._body = None

    @property
    def scope(self) -> Scope:
        """As the application is to see it."""
        extensions = self._own_scope.get("extensions") or {}
        return {**self._own_scope, "extensions": {**extensions, _EXTENSION: {"refused": self._refused}}}

    def heard(self, message: Message) -> bool:
        """Whether this message of the application is that it wants the body, and no part of its answer."""
        if message["type"] != _WANTED:
            return False
        self._let_in(message.get("most_requests"))
        self._wanted.set()
        return True

    async def receive(self) -> Message:
        """For the proxy: the whole body once it is wanted, then what comes after it.

        If it breaks a limit, or is not wanted for as long as a body may take, the client has left, as far as the proxy
        is concerned: what it began is ended.
        """
        if self._is_handed_on:
            return await self._receive()
        try:  # no process of the application may be there to want it
            async with asyncio.timeout(self._bodies.limits.body_timeout_s):
                await self._wanted.wait()
        except TimeoutError:
            return {"type": "http.disconnect"}
        if self._body is None:
            try:
                self._body = await self._bodies.read(self._own_scope, self.incoming)
            except ApiError as error:
                self.error = error
        if self._body is None:
            return {"type": "http.disconnect"}
        self._is_handed_on = True
        return {"type": "http.request", "body": self._body, "more_body": False}
