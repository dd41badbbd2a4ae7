"""Headers: the request's id, its API key, the names of hosts, and the headers by which a client could steer Ray Serve.

Ray Serve 2.60 obeys the client: `x-request-timeout-seconds` replaces the server's own time limit (0 removes it), and
`x-request-disconnect-disabled` lets it go on generating for a client that has left. Both are read in its proxy, before
the application (`ray/serve/_private/proxy.py`, `send_request_to_replica`). So the gate removes them in front of the
proxy (`endpoint/gate/gate.py`). If one reaches the application, there is no gate, and the request is refused.

A page of another site can give its own name the address 127.0.0.1 (DNS rebinding). To a browser that name is then the
page's own site, whose answers it may read; only the Host header tells it from this machine.

Without an API key every path is closed, unknown paths too, except the few that are named public. Only digests of the
keys are kept. Each request is compared with all of them, each in constant time, so that the time of an answer says
nothing about a key.
"""

import hmac
import logging
import os
import re
import uuid
from collections.abc import Collection, Iterable, Sequence
from hashlib import sha256
from pathlib import Path

from starlette.datastructures import MutableHeaders
from starlette.types import Message, Scope, Send

from endpoint.http.bodies import Limits, has_body
from endpoint.http.errors import CLOSE, ApiError
from pipeline.logs import Event

STEERING_HEADERS = frozenset({b"x-request-timeout-seconds", b"x-request-disconnect-disabled"})
ROUTING_HEADERS = frozenset({b"serve_multiplexed_model_id", b"serve-multiplexed-model-id", b"x-session-id"})
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._~:+/=@-]{1,128}")
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
_log = logging.getLogger(__name__)
_KEY = re.compile(r"[!-~]{16,512}")  # what a header can carry in one piece: printable ASCII without spaces


def check_headers(scope: Scope, limits: Limits) -> None:
    """Raise ApiError for a malformed id (400), a steering header (400), a long URL (414) and large headers (431)."""
    headers, ids = scope["headers"], _request_ids(scope)
    if len(ids) > 1 or not all(map(_REQUEST_ID.fullmatch, ids)):
        raise ApiError(400, "x-request-id must be 1 to 128 letters, digits or . _ ~ : + / = @ -, and be there once.")
    if steering := sorted(name.lower().decode() for name, _ in headers if name.lower() in STEERING_HEADERS):
        raise ApiError(400, f"The header {steering[0]} is not taken from clients.", param=steering[0])
    if len(scope.get("raw_path") or b"") + len(scope.get("query_string", b"")) > limits.max_header_bytes:
        raise ApiError(414, "The URL is too long.", headers=CLOSE)
    num_bytes = sum(len(name) + len(value) for name, value in headers)
    if num_bytes > limits.max_header_bytes or len(headers) > limits.max_headers:
        allowed = f"at most {limits.max_headers} headers of {limits.max_header_bytes} bytes in all"
        raise ApiError(431, f"The headers are too large: {allowed}.", headers=CLOSE)


def request_id_of(scope: Scope) -> str:
    """Return the client's own id of the request, in `x-request-id`, if it is well formed; otherwise a new one."""
    ids = _request_ids(scope)
    return str(ids[0].decode("ascii")) if len(ids) == 1 and _REQUEST_ID.fullmatch(ids[0]) else uuid.uuid4().hex


def with_request_id(send: Send, request_id: str) -> Send:
    """Return a `send` that puts the id on the answer, once, and tells browsers not to guess at types."""

    async def send_with_id(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            del headers["x-request-id"]
            headers["x-request-id"] = request_id
            headers["x-content-type-options"] = "nosniff"
        await send(message)

    return send_with_id


def _request_ids(scope: Scope) -> list[bytes]:
    return [value for name, value in scope["headers"] if name.lower() == b"x-request-id"]


def check_host(scope: Scope, names: Collection[str]) -> None:
    """Raise ApiError (403) unless the request has one Host header, with one of these names and any port."""
    hosts = [value.decode("latin-1") for name, value in scope["headers"] if name.lower() == b"host"]
    if [host_name(host) for host in hosts] not in ([name.lower()] for name in names):
        message = "The Host header is none of this endpoint's names; serve.allowed_hosts adds others."
        raise ApiError(403, message, code="host_not_allowed", headers=CLOSE)


def host_name(host: str) -> str:
    """Return the name in a Host header, without its port, in lower case."""
    name, separator, port = host.strip().lower().rpartition(":")
    return name if separator and port.isdigit() else host.strip().lower()


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
