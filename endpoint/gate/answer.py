"""GateAnswer: what a client is told of what comes from behind the gate, and how it ends."""

from __future__ import annotations

from collections.abc import Callable

from starlette.datastructures import MutableHeaders
from starlette.types import Message, Send

from endpoint.http.bodies import refuse_and_linger
from endpoint.http.errors import is_to_ask_again, model_unavailable
from endpoint.http.held_bodies import BodyOnDemand
from endpoint.http.refusal import finish, refuse


class GateAnswer:
    """Of one request: the application's as it is, the proxy's own in the form of the API."""

    def __init__(
        self, send: Send, body: BodyOnDemand | None = None, not_let_in: Callable[[], None] | None = None
    ) -> None:
        """With `body`, to a request whose body is held back; `not_let_in` is called if nobody asks for it."""
        self._send, self._body, self._not_let_in = send, body, not_let_in
        self._has_begun = self._is_over = False
        self.asks_for_another = False  # process of the application: this one's engines are gone, by an update
        self._closes = False  # behind a body that nobody wanted

    async def send(self, message: Message) -> None:
        """Pass a message on, or not."""
        if self._body is not None and self._body.heard(message):
            return
        if message["type"] == "http.response.start" and is_to_ask_again(message):
            self.asks_for_another = self._body is not None
        elif message["type"] == "http.response.start" and not _is_proxys_own(message):
            self._has_begun = True
            if self._body is not None:
                self._body.let_go()
            self._closes = self._body is not None and not self._body.is_wanted
            if self._closes:
                if self._not_let_in is not None:
                    self._not_let_in()
                MutableHeaders(scope=message)["connection"] = "close"
        if self._has_begun:
            self._is_over = message["type"] == "http.response.body" and not message.get("more_body", False)
            await self._send({**message, "more_body": True} if self._closes and "body" in message else message)

    async def end(self) -> None:
        """The proxy is done. Where it died over the request it has said nothing at all."""
        body = self._body
        if body is None:
            if not self._has_begun:
                await refuse(self._send, model_unavailable())
        elif not self._has_begun:
            await refuse_and_linger(body.incoming, self._send, body.error or model_unavailable())
        elif self._closes or (body.error is not None and not self._is_over):  # or it ended with what the body broke
            await body.incoming.let_pass()
            await finish(self._send)


def _is_proxys_own(start: Message) -> bool:
    """An error in plain text: no application can be reached (404, 503), or a process of it was lost."""
    status: int = start["status"]
    types = [bytes(value) for name, value in start["headers"] if bytes(name).lower() == b"content-type"]
    return status >= 400 and any(value.startswith(b"text/plain") for value in types)
