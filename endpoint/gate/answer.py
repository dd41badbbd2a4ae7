"""One request between client and proxy: its body, held back until the application asks for it, and its answer."""

import asyncio
import time
from dataclasses import replace
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.types import Message, Scope, Send

from endpoint.gate.capacity import Claim
from endpoint.http.bodies import (
    EXTENSION,
    TAKEN,
    WANTED,
    WINDOW_BYTES,
    Bodies,
    Incoming,
    is_upload,
    refuse_and_drain,
    upload_too_slow,
)
from endpoint.http.errors import ApiError, finish, ingress_lost, is_model_replaced, model_unavailable, refuse
from endpoint.http.events import error_event, is_last_event
from endpoint.http.origin import EXTENSION as ORIGIN
from endpoint.http.origin import REACHED, Origin


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


class GateAnswer:
    """The answer to one request: the application's unchanged, the proxy's own errors in the form of the API.

    It begins with the first part of its body. Until then nothing is sent, and another ingress can be asked. Another one
    can go on with a stream, too, and sends only what the client does not have (`endpoint/http/origin.py`).
    """

    def __init__(
        self, send: Send, incoming: Incoming, body: HeldBody | None = None, *, has_names: bool = False
    ) -> None:
        """Answer a request whose `body` is held back, if given. Events of its stream may have names."""
        self._send, self._incoming, self._body, self._has_names = send, incoming, body, has_names
        self._start: Message | None = None  # the application's, once it has come
        self._has_begun = self._is_over = self._is_refused = self._has_last_event = False
        self._resumes = body is not None and body.is_resuming  # what another ingress has begun
        self.needs_another_ingress = False  # an update has replaced the engines of the one that was asked
        self._closes = False  # the connection, because the client may still be writing a body that is not wanted

    @property
    def is_lost(self) -> bool:
        """Whether the ingress was lost before the answer began. Serve's proxy (2.60) then sends nothing at all."""
        is_unwanted = self._incoming.has_left or self._is_refused or self.needs_another_ingress
        has_body_failed = self._body is not None and (self._body.error is not None or self._body.is_given_up)
        return not (self._has_begun or is_unwanted or has_body_failed)

    @property
    def can_go_on(self) -> bool:
        """Whether the ingress was lost in the middle of a stream that another one can go on with."""
        body, is_over = self._body, self._is_over or self._has_last_event or self._incoming.has_left
        return self._has_begun and not is_over and body is not None and body.can_resume

    async def send(self, message: Message) -> None:
        """Pass on one message from behind the gate, unless it is not meant for the client."""
        if self._body is not None and self._body.handle(message):
            return
        if message["type"] == "http.response.start":
            if is_model_replaced(message):
                self._is_refused = True
                self.needs_another_ingress = self._body is not None and self._body.can_rewind
            elif _is_proxys_own(message) or (self._resumes and not _is_stream(message)):
                self._is_refused = True
            else:
                self._start = message
        elif self._start is not None:
            if not self._has_begun:
                await self._begin(self._start)
            self._is_over = message["type"] == "http.response.body" and not message.get("more_body", False)
            if message.get("body") and _is_stream(self._start):
                self._has_last_event = is_last_event(message["body"], has_names=self._has_names)
            await self._send({**message, "more_body": True} if self._closes and "body" in message else message)

    async def _begin(self, start: Message) -> None:
        self._has_begun = True
        if self._resumes:
            if self._body is not None:
                self._body.release()
            return
        if self._body is not None:
            if _is_stream(start):
                self._body.keep()
            else:
                self._body.release()
            self._closes = not self._body.is_wanted or self._body.has_rest
            if not self._body.is_wanted:
                self._body.claim.capacity.forget(self._body.claim)
            if self._closes:
                MutableHeaders(scope=start)["connection"] = "close"
        await self._send(start)

    async def end(self, *, may_repeat: bool = True) -> None:
        """End the answer when the proxy is done. Without an answer of the application, send an error of our own.

        It says whether the client `may_repeat` a request whose ingress was lost.
        """
        body = self._body
        if self._resumes:
            if not (self._is_over or self._incoming.has_left):
                await self._end_stream(may_repeat=may_repeat)
        elif not self._has_begun and body is None:
            await refuse(self._send, model_unavailable())
        elif not self._has_begun and body is not None:
            lost = ingress_lost(may_repeat=may_repeat) if self.is_lost and body.is_wanted else model_unavailable()
            await refuse_and_drain(body.incoming, self._send, body.error or lost)
        elif body is not None and (self._closes or (body.error is not None and not self._is_over)):
            await body.incoming.drain()  # the body broke the answer off
            await finish(self._send)
        elif not (self._is_over or self._incoming.has_left) and self._start is not None and _is_stream(self._start):
            await self._end_stream(may_repeat=may_repeat)
        # The web server closes the connection of any other answer that is not over, which the client sees.

    async def _end_stream(self, *, may_repeat: bool) -> None:
        lost = ingress_lost(may_repeat=may_repeat)
        last = b"" if self._has_last_event else error_event(lost, has_names=self._has_names)
        await self._send({"type": "http.response.body", "body": last, "more_body": False})


def _is_stream(start: Message) -> bool:
    return _content_type(start).startswith(b"text/event-stream")


def _is_proxys_own(start: Message) -> bool:
    """Tell whether an answer is the proxy's own error in plain text: if no application can be reached (404, 503)."""
    status: int = start["status"]
    return status >= 400 and _content_type(start).startswith(b"text/plain")


def _content_type(start: Message) -> bytes:
    types = [bytes(value) for name, value in start["headers"] if bytes(name).lower() == b"content-type"]
    return types[0] if types else b""
