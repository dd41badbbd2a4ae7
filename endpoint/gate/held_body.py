"""HeldBody: the body of one request, held back at the gate until the application asks for it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

from starlette.types import Message, Scope

from endpoint.gate.capacity import Claim
from endpoint.http.bodies import EXTENSION, WANTED, Bodies, Incoming
from endpoint.http.errors import ApiError
from endpoint.http.origin import EXTENSION as ORIGIN
from endpoint.http.origin import REACHED, Origin
from endpoint.http.uploads import TAKEN, WINDOW_BYTES, is_upload, upload_too_slow


class HeldBody:
    """One request's body between the client and the proxy."""

    def __init__(self, scope: Scope, incoming: Incoming, bodies: Bodies, claim: Claim) -> None:
        """Hold the body back. The application is told how many requests were refused at the gate."""
        self.incoming, self.claim = incoming, claim
        self.error: ApiError | None = None  # why the body was not taken, though the application asked for it
        self.is_given_up = False  # no process has asked for it in time
        self.is_resuming = False  # another ingress goes on with a stream of which the client has a part
        self._own_scope, self._bodies, self._refused = scope, bodies, claim.capacity.take_refused()
        self._origin, self._came_at = Origin(), time.monotonic()
        self._reached: dict[int, tuple[Any, ...]] = {}  # by the samples of a stream, with what the client has
        self._wanted = asyncio.Event()
        self._is_handed_on, self._num_tried = False, 0
        self._body: bytes | None = None  # once it is here, until `release`
        self._is_kept = False  # with those of streams
        self._is_upload = is_upload(scope)  # it is handed on in parts, and never kept
        self._num_handed_on = self._num_taken = 0  # bytes of it
        self._has_room = asyncio.Event()

    @property
    def is_wanted(self) -> bool:
        """Whether the application has asked for the body."""
        return self._wanted.is_set()

    @property
    def has_rest(self) -> bool:
        """Whether the client is still writing an upload, which the application has answered already."""
        return self._is_upload and not self.incoming.is_over

    @property
    def can_rewind(self) -> bool:
        """Whether another ingress can be asked the same."""
        return not self._num_handed_on and (self._body is not None or not self.is_wanted)

    @property
    def can_resume(self) -> bool:
        """Whether another ingress can go on with a stream: once, since a request may be what ends them."""
        return self.can_rewind and bool(self._reached) and not self.is_resuming

    def rewind(self) -> None:
        """Hold the body back again, so that another ingress can be asked the same."""
        self._wanted.clear()
        self._num_tried += 1
        self._is_handed_on, self._refused = False, {}
        self.is_resuming = bool(self._reached)

    def keep(self) -> None:
        """Keep the body while a stream is sent, if that can be resumed and there is room; else drop it."""
        self._is_kept = self._body is not None and self.can_resume and self._bodies.keep(self._body)
        if not self._is_kept:
            self.release()

    def release(self) -> None:
        """Drop the body: no other ingress will be asked."""
        if self._body is not None:
            self._bodies.release(self._body, was_kept=self._is_kept)
        self._body = None

    @property
    def scope(self) -> Scope:
        """The request's scope as the application is to see it."""
        extensions = self._own_scope.get("extensions") or {}
        used_s = time.monotonic() - self._came_at
        reached = dict(self._reached)
        origin = replace(self._origin, used_s=used_s, attempt=self._num_tried + 1, reached=reached)
        return {**self._own_scope, "extensions": {**extensions, EXTENSION: {"refused": self._refused}, ORIGIN: origin}}

    def handle(self, message: Message) -> bool:
        """Return True if a message of the application is for the gate, and so is no part of its answer."""
        self._reached |= message.get(REACHED) or {}
        if message["type"] == TAKEN:
            self._num_taken = max(self._num_taken, message["num_bytes"])
            self._has_room.set()
            return True
        if message["type"] != WANTED:
            return False
        self.claim.capacity.confirm(self.claim, message.get("max_requests"))
        self._wanted.set()
        return True

    async def receive(self) -> Message:
        """Return what the proxy is to receive: the whole body once it is wanted, then whatever follows.

        The proxy is told that the client has left if the body breaks a limit, or is not asked for within the time that
        a body may take, so that the proxy ends what it has begun.
        """
        if self._is_handed_on:
            return await self.incoming.receive()
        try:  # there may be no ingress that could ask
            async with asyncio.timeout(self._bodies.limits.body_timeout_s):
                await self._wanted.wait()
        except TimeoutError:
            self.is_given_up = True
            return {"type": "http.disconnect"}
        if self._is_upload:
            return await self._next_part()
        if self._body is None:
            try:
                self._body = await self._bodies.read(self._own_scope, self.incoming)
            except ApiError as error:
                self.error = error
        if self._body is None:
            return {"type": "http.disconnect"}
        self._is_handed_on = True
        return {"type": "http.request", "body": self._body, "more_body": False}

    async def _next_part(self) -> Message:
        """Return the next part of an upload, when the application has taken enough of the parts before."""
        timeout_s = self._bodies.limits.body_timeout_s
        while self._num_handed_on - self._num_taken >= WINDOW_BYTES:
            self._has_room.clear()
            await self._has_room.wait()
        try:
            async with asyncio.timeout(timeout_s):
                chunk = await self.incoming.chunk()
        except TimeoutError:
            self.error = upload_too_slow(timeout_s)
        if self.error is not None or self.incoming.has_left:
            self._is_handed_on = True
            return {"type": "http.disconnect"}
        self._num_handed_on += len(chunk)
        self._is_handed_on = self.incoming.is_over
        return {"type": "http.request", "body": chunk, "more_body": not self.incoming.is_over}
