"""TimedConnection: a connection to Serve's proxy that is closed if the headers of a request take too long.

The proxy's web server (uvicorn) waits for them without an end, so that a client that sends a byte now and then could
hold as many connections as the process may open.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from uvicorn.config import HTTP_PROTOCOLS
from uvicorn.protocols.http.auto import AutoHTTPProtocol

_Connection: Any = AutoHTTPProtocol


class TimedConnection(_Connection):  # type: ignore[misc]  # uvicorn picks its class at import
    """One connection of uvicorn's (0.54), whatever it reads HTTP with."""

    header_timeout_s: ClassVar[float] = 30.0
    _closing: asyncio.TimerHandle | None = None
    _is_upgraded = False

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the headers of the first request."""
        super().connection_made(transport)
        self._wait_for_headers()

    def data_received(self, data: bytes) -> None:
        """Take what the client sends, and wait on for headers if no request is under way."""
        super().data_received(data)
        if self._is_upgraded or (self.cycle is not None and not self.cycle.response_complete):
            self._stop_waiting()
        else:
            self._wait_for_headers()

    def handle_websocket_upgrade(self, *arguments: Any) -> None:
        """Leave the connection to the protocol for WebSockets."""
        self._is_upgraded = True
        super().handle_websocket_upgrade(*arguments)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the waiting with the connection."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait_for_headers(self) -> None:
        """Close the connection in time, unless it is waited for already."""
        if self._closing is None and not self.transport.is_closing():
            self._closing = self.loop.call_later(self.header_timeout_s, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None


def limit_header_time(seconds: float) -> None:
    """Let the web servers that this process starts from now on close a connection whose headers take longer."""
    TimedConnection.header_timeout_s = seconds
    HTTP_PROTOCOLS["auto"] = f"{__name__}:{TimedConnection.__name__}"
