"""EagerProxy: it does with a body what Serve's proxy does, without Serve, and takes in whatever arrives."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from endpoint.gate.gate import INGRESS_NAME


@dataclass(frozen=True)
class Handle:
    deployment_name: str


class Router:
    """A router that sends every path to one deployment."""

    def __init__(self, deployment_name: str) -> None:
        self._handle = Handle(deployment_name)

    def match_route(self, path: str) -> tuple[str, Handle, bool]:
        return "/", self._handle, False


class EagerProxy:
    """A proxy in front of one application. `num_bytes` counts what it took in of all bodies."""

    def __init__(self, app: ASGIApp, deployment_name: str = INGRESS_NAME) -> None:
        self._app, self.proxy_router, self.num_bytes = app, Router(deployment_name), 0

    def deploy(self, app: ASGIApp) -> None:
        """Put another application in its place."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on one request. If the client leaves, the application's part of it is cancelled."""
        queue: asyncio.Queue[Message] = asyncio.Queue()
        answering: asyncio.Task[Any] = asyncio.ensure_future(self._app(scope, queue.get, send))

        async def take_in() -> None:
            while True:
                message = await receive()
                self.num_bytes += len(message.get("body", b""))
                queue.put_nowait(message)
                if message["type"] == "http.disconnect":
                    answering.cancel()
                    return

        taking = asyncio.ensure_future(take_in())
        with suppress(asyncio.CancelledError):
            await answering
        taking.cancel()
