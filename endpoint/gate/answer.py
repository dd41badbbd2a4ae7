"""GateAnswer: how the gate passes an answer on to the client, how another ingress goes on with it, and how it ends."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import Message, Send

from endpoint.gate.held_body import HeldBody
from endpoint.http.bodies import Incoming, refuse_and_drain
from endpoint.http.errors import finish, ingress_lost, is_model_replaced, model_unavailable, refuse
from endpoint.http.events import error_event, is_last_event


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
