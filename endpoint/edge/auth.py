"""API keys. Without one every path is closed, unknown paths too, except the few that are named public.

Only digests of the keys are kept. Each request is compared with all of them, each in constant time, so that the time
of an answer says nothing about a key.
"""

from __future__ import annotations

import hmac
import logging
import os
import re
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from endpoint.http.errors import ApiError, refuse
from endpoint.http.held_body import has_body
from endpoint.http.limits import CLOSE
from pipeline.logs import Event

_log = logging.getLogger(__name__)
_KEY = re.compile(r"[!-~]{16,512}")  # what a header can carry in one piece: printable ASCII without spaces


class Keys:
    """The keys that open the endpoint, as digests."""

    def __init__(self, keys: Iterable[str]) -> None:
        """Take at least one key of 16 to 512 printable ASCII characters without spaces; raises ValueError otherwise."""
        keys = list(keys)
        if not keys:
            raise ValueError("there is no API key; give at least one, or declare the endpoint open")
        for number, key in enumerate(keys, start=1):
            if not _KEY.fullmatch(key):
                raise ValueError(f"API key {number} of {len(keys)} is not 16 to 512 printable ASCII characters")
        self._digests = tuple({sha256(key.encode()).digest() for key in keys})

    def __len__(self) -> int:
        return len(self._digests)

    def __repr__(self) -> str:
        return f"Keys({len(self)})"

    def has(self, key: bytes) -> bool:
        """Tell whether this is one of the keys."""
        digest = sha256(key).digest()
        return sum(hmac.compare_digest(digest, known) for known in self._digests) > 0  # `any` would end early


def load_keys(files: Sequence[str | Path] = (), variables: Sequence[str] = ()) -> Keys:
    """Load keys from files (one in each line, except blank lines and lines with #) and environment variables.

    A variable holds keys separated by commas. Raises ValueError for a file or variable that cannot be read, is not set,
    or holds something that is no key; the message names the file or variable, never the text in it.
    """
    keys: list[str] = []
    for file in files:
        try:
            lines = Path(file).read_text("ascii").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"the API keys in {file} cannot be read: {type(error).__name__}") from None
        keys += _checked([line.strip() for line in lines if line.strip() and not line.startswith("#")], str(file))
    for variable in variables:
        if variable not in os.environ:
            raise ValueError(f"the environment variable {variable}, which must hold API keys, is not set")
        keys += _checked([part.strip() for part in os.environ[variable].split(",") if part.strip()], variable)
    return Keys(keys)


def _checked(keys: list[str], source: str) -> list[str]:
    if not keys:
        raise ValueError(f"there is no API key in {source}")
    try:
        Keys(keys)
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None
    return keys


class Auth:
    """Middleware that passes on requests with `Authorization: Bearer KEY` and those for public paths."""

    def __init__(self, app: ASGIApp, keys: Keys, public_paths: Iterable[str]) -> None:
        """Open the `public_paths`, which match exactly, to GET and HEAD without a body; anything else takes a key."""
        self._app, self._keys, self._public_paths = app, keys, frozenset(public_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on or refuse one request."""
        if scope["type"] == "lifespan" or ((is_public := self._is_public(scope)) and not has_body(scope)):
            await self._app(scope, receive, send)
            return
        if is_public:
            await refuse(send, ApiError(413, "This path takes no body.", code="body_too_large", headers=CLOSE))
            return
        if scope["type"] != "http":  # a WebSocket: closed before it is accepted, which the client sees as a 403
            await send({"type": "websocket.close", "code": 1008})
            return
        key = _bearer(scope)
        if key is not None and self._keys.has(key):
            await self._app(scope, receive, send)
            return
        request_id = scope.get("state", {}).get("request_id")
        _log.info(Event("key refused", request_id=request_id, reason="no key" if key is None else "unknown key"))
        await refuse(send, _no_key() if key is None else _unknown_key())

    def _is_public(self, scope: Scope) -> bool:
        return (
            scope["type"] == "http"
            and scope["method"] in ("GET", "HEAD")
            and scope["path"].removeprefix(scope.get("root_path", "")) in self._public_paths
        )


def _bearer(scope: Scope) -> bytes | None:
    """Return the key that the request came with; None if it came with none, or with several."""
    values = [value for name, value in scope["headers"] if name.lower() == b"authorization"]
    if len(values) != 1:
        return None
    scheme, _, key = values[0].strip().partition(b" ")
    return key.strip() or None if scheme.lower() == b"bearer" else None


def _no_key() -> ApiError:
    return ApiError(
        401,
        "Send an API key in the header Authorization: Bearer KEY.",
        code="missing_api_key",
        headers={"www-authenticate": 'Bearer realm="dray"'},
    )


def _unknown_key() -> ApiError:
    return ApiError(
        401,
        "The API key is not valid here.",
        code="invalid_api_key",
        headers={"www-authenticate": 'Bearer realm="dray", error="invalid_token"'},
    )
