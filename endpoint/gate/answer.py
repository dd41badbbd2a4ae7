"""GateAnswer: how the gate passes an answer on to the client, and how it ends it."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import Message, Send

from endpoint.gate.held_body import HeldBody
from endpoint.http.bodies import refuse_and_drain
from endpoint.http.errors import finish, is_model_replaced, model_unavailable, refuse


class GateAnswer:
    """The answer to one request: the application's unchanged, the proxy's own errors in the form of the API."""

    def __init__(self, send: Send, body: HeldBody | None = None) -> None:
        """Answer a request whose `body` is held back, if given."""
        self._send, self._body = send, body
        self._has_begun = self._is_over = False
        self.needs_another_ingress = False  # an update has replaced the engines of the one that was asked
        self._closes = False  # the connection, because the client may still be writing a body that is not wanted

    async def send(self, message: Message) -> None:
        """Pass on one message from behind the gate, unless it is not meant for the client."""
        if self._body is not None and self._body.handle(message):
            return
        if message["type"] == "http.response.start" and is_model_replaced(message):
            self.needs_another_ingress = self._body is not None and self._body.can_rewind
        elif message["type"] == "http.response.start" and not _is_proxys_own(message):
            self._has_begun = True
            if self._body is not None:
                self._body.release()
                self._closes = not self._body.is_wanted or self._body.has_rest
                if not self._body.is_wanted:
                    self._body.claim.capacity.forget(self._body.claim)
                if self._closes:
                    MutableHeaders(scope=message)["connection"] = "close"
        if self._has_begun:
            self._is_over = message["type"] == "http.response.body" and not message.get("more_body", False)
            await self._send({**message, "more_body": True} if self._closes and "body" in message else message)

    async def end(self) -> None:
        """End the answer when the proxy is done. Without an answer of the application, send an error of our own."""
        body = self._body
        if body is None:
            if not self._has_begun:
                await refuse(self._send, model_unavailable())
        elif not self._has_begun:
            await refuse_and_drain(body.incoming, self._send, body.error or model_unavailable())
        elif self._closes or (body.error is not None and not self._is_over):  # the body broke the answer off
            await body.incoming.drain()
            await finish(self._send)


def _is_proxys_own(start: Message) -> bool:
    """Tell whether an answer is the proxy's own error in plain text.

    It sends one if no application can be reached (404, 503), or if a process of the application was lost.
    """
    status: int = start["status"]
    types = [bytes(value) for name, value in start["headers"] if bytes(name).lower() == b"content-type"]
    return status >= 400 and any(value.startswith(b"text/plain") for value in types)
