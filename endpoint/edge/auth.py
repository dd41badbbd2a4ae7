"""API keys. Without one every path is closed, unknown paths too, except the few that are named public.

Only digests of the keys are kept. Each request is compared with all of them, each in constant time, so that the time
of an answer says nothing about a key.
"""

from __future__ import annotations

import hmac
import logging
import os
import re
from collections.abc import Collection, Iterable, Sequence
from hashlib import sha256
from pathlib import Path

from starlette.types import Scope

from endpoint.http.bodies import has_body
from endpoint.http.errors import CLOSE, ApiError
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

    @property
    def fingerprint(self) -> str:
        """A digest of all of them together, whatever their order."""
        return sha256(b"".join(sorted(self._digests))).hexdigest()

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
            lines = Path(file).expanduser().read_text("ascii").splitlines()
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


def check_key(scope: Scope, keys: Keys, public_paths: Collection[str]) -> bytes | None:
    """Return the key of a request, None on a public path. Raises ApiError (401) without `Authorization: Bearer KEY`.

    The `public_paths`, which match exactly, are open to GET and HEAD, and 413 to a body.
    """
    if scope["method"] in ("GET", "HEAD") and scope["path"].removeprefix(scope.get("root_path", "")) in public_paths:
        if has_body(scope):
            raise ApiError(413, "This path takes no body.", code="body_too_large", headers=CLOSE)
        return None
    key = _bearer(scope)
    if key is not None and keys.has(key):
        return key
    message, code, challenge = (
        ("Send an API key in the header Authorization: Bearer KEY.", "missing_api_key", "")
        if key is None
        else ("The API key is not valid here.", "invalid_api_key", ', error="invalid_token"')
    )
    request_id = scope.get("state", {}).get("request_id")
    _log.info(Event("key refused", request_id=request_id, reason="no key" if key is None else "unknown key"))
    raise ApiError(401, message, code=code, headers={"www-authenticate": f'Bearer realm="dray"{challenge}'})


def _bearer(scope: Scope) -> bytes | None:
    """Return the key that the request came with; None if it came with none, or with several."""
    values = [value for name, value in scope["headers"] if name.lower() == b"authorization"]
    if len(values) != 1:
        return None
    scheme, _, key = values[0].strip().partition(b" ")
    return key.strip() or None if scheme.lower() == b"bearer" else None
