"""Uploads: bodies that are streamed to the application, which never holds more than a part of one.

The gate lets a part in when the application has taken an earlier one: Ray Serve's processes in between would take in
whatever arrives. So the application says by ASGI messages of our own how much it has taken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import Message, Scope, Send

from endpoint.http.bodies import Incoming, is_held_back
from endpoint.http.errors import ApiError, server_busy
from endpoint.http.limits import CLOSE

UPLOAD_PATH = "/v1/files"
TAKEN = "dray.body.taken"
WINDOW_BYTES = 4 * 2**20  # that may be on their way between gate and application
MAX_EXTRA_BYTES = 64 * 2**10  # of a multipart body, beside the file in it
_TELL_BYTES = WINDOW_BYTES // 4
_MAX_UPLOADS = 16  # at once in one process


def is_upload(scope: Scope) -> bool:
    """Tell whether the body of this request is streamed."""
    return scope["method"] == "POST" and str(scope["path"]).removeprefix(scope.get("root_path", "")) == UPLOAD_PATH


class Upload:
    """The body of one upload as the application receives it."""

    def __init__(self, incoming: Incoming, max_bytes: int, timeout_s: float, scope: Scope, send: Send) -> None:
        """Take at most `max_bytes`, of which each part must come within `timeout_s`; tell the gate of `scope`."""
        self._incoming, self._max_bytes, self._timeout_s = incoming, max_bytes, timeout_s
        self._send = send if is_held_back(scope) else None
        self._num_bytes = self._num_told = 0

    async def receive(self) -> Message:
        """Return the next part, or that the client left. Raises ApiError (408, 413)."""
        incoming = self._incoming
        if incoming.is_over:
            return await incoming.receive()
        try:
            async with asyncio.timeout(self._timeout_s):
                chunk = await incoming.chunk()
        except TimeoutError:
            raise upload_too_slow(self._timeout_s) from None
        if incoming.has_left:
            return {"type": "http.disconnect"}
        self._num_bytes += len(chunk)
        if self._num_bytes > self._max_bytes:
            raise upload_too_large(self._max_bytes)
        if self._send is not None and self._num_bytes - self._num_told >= _TELL_BYTES:
            self._num_told = self._num_bytes
            await self._send({"type": TAKEN, "num_bytes": self._num_bytes})
        return {"type": "http.request", "body": chunk, "more_body": not incoming.is_over}


class Uploads:
    """All uploads in one process."""

    def __init__(self) -> None:
        self._num_uploads = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count an upload while the block runs. Raises ApiError (429) if there are too many."""
        if self._num_uploads >= _MAX_UPLOADS:
            raise server_busy("it takes in too many files", CLOSE)
        self._num_uploads += 1
        try:
            yield
        finally:
            self._num_uploads -= 1


def upload_too_large(max_bytes: int) -> ApiError:
    """Return the error for a body of more than `max_bytes`."""
    message = f"The file is larger than {max(0, max_bytes - MAX_EXTRA_BYTES)} bytes."
    return ApiError(413, message, param="file", code="body_too_large", headers=CLOSE)


def upload_too_slow(timeout_s: float) -> ApiError:
    """Return the error for a body of which nothing came for `timeout_s`."""
    return ApiError(408, f"Nothing of the body arrived for {timeout_s:g} s.", headers=CLOSE)
