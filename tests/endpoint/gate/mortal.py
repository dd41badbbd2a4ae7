"""Processes of the application that are lost in the middle of an answer."""

import asyncio
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from endpoint.http.origin import EXTENSION


class Mortal:
    """Processes with the same application; `lifetimes` says behind how many parts each is lost. The last one stays.

    As behind Serve's proxy, nothing more is sent then, and the engine is not told. `origins` are those that the
    processes were given, and `num_parts` is what they have sent, without the end of the connection.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app, self.lifetimes, self.origins, self.num_parts = app, list[int](), list[Any](), 0
        self._tasks = list[asyncio.Future[None]]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.origins.append(scope["extensions"][EXTENSION])
        left, is_lost = self.lifetimes.pop(0) if self.lifetimes else None, asyncio.Event()

        async def send_while_alive(message: Message) -> None:
            nonlocal left
            if left is not None and message["type"] == "http.response.body":
                if left == 0:
                    is_lost.set()
                    await asyncio.Event().wait()
                left -= 1
            self.num_parts += bool(message.get("body"))
            await send(message)

        ends = asyncio.ensure_future(is_lost.wait())
        answering = asyncio.ensure_future(self._app(scope, receive, send_while_alive))
        self._tasks.append(answering)  # one that is lost stays until the server ends
        await asyncio.wait([answering, ends], return_when=asyncio.FIRST_COMPLETED)
        ends.cancel()
        if answering.done():
            answering.result()
