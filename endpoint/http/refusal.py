"""An error as the answer to a request that has not reached the application: what the middlewares here send."""

from __future__ import annotations

import json

from starlette.types import Send

from endpoint.http.errors import ApiError


async def refuse(send: Send, error: ApiError, *, is_last: bool = True) -> None:
    """Send the whole answer. With `is_last` false the connection stays open until `finish` is called."""
    body = json.dumps(error.envelope()).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), **error.headers}
    raw_headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": raw_headers})
    await send({"type": "http.response.body", "body": body, "more_body": not is_last})


async def finish(send: Send) -> None:
    """End an answer whose body was not the last of it."""
    await send({"type": "http.response.body", "body": b"", "more_body": False})
