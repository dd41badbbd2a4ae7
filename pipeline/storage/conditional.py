"""A PUT to an S3 store that fails if the object is there (`If-None-Match: *`), by obstore: pyarrow cannot send that.

Stores that do not know the header, or whose credentials obstore does not find, get a plain PUT. Then the question to
the ledger right before it decides alone which of two attempts writes.
"""

from __future__ import annotations

import logging
import threading
from datetime import timedelta
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, GenericError
from obstore.store import S3Store

from pipeline.logs import Event
from pipeline.storage.location import Location

if TYPE_CHECKING:
    from obstore.store import RetryConfig, S3Config

_NOT_IMPLEMENTED = ("NotImplemented", "501")
# As pyarrow's client does; `Location.retrying` covers longer failures.
_RETRIES: RetryConfig = {
    "max_retries": 15,
    "retry_timeout": timedelta(seconds=10),
    "backoff": {"init_backoff": timedelta(seconds=0.05), "max_backoff": timedelta(seconds=1), "base": 2},
}
_told = threading.Event()  # a process warns once
_log = logging.getLogger(__name__)


def create_object(location: Location, content: bytes) -> bool | None:
    """Create the object; return False if another one was there first, and None if this store cannot tell.

    Raises OSError, which may be transient, if the store fails.
    """
    parts = urlsplit(location.name)
    if parts.scheme != "s3":
        return None
    try:
        obstore.put(_store(location), location.path.partition("/")[2], content, mode="create", use_multipart=False)
    except AlreadyExistsError:  # perhaps by a try of ours whose answer was lost
        return location.read_bytes() == content
    except BaseError as error:
        first_line = (str(error).splitlines() or [""])[0]
        if isinstance(error, GenericError) and not any(word in first_line for word in _NOT_IMPLEMENTED):
            raise OSError(f"HTTP status 503 or no answer: {first_line}") from error
        if not _told.is_set():
            _told.set()
            _log.warning(Event("no conditional writes", failure=first_line))
        return None
    return True


def _store(location: Location) -> S3Store:
    """Return the bucket of a location, with what pyarrow was told about it; credentials come from the environment."""
    query = {name: values[-1] for name, values in parse_qs(urlsplit(location.name).query).items()}
    scheme = query.get("scheme", "https")
    config: S3Config = {"region": query.get("region") or getattr(location.filesystem, "region", None) or "us-east-1"}
    if endpoint := query.get("endpoint_override"):
        config["endpoint"] = endpoint if "://" in endpoint else f"{scheme}://{endpoint}"
    return S3Store(
        location.path.partition("/")[0],
        config=config,
        client_options={"allow_http": scheme == "http", "timeout": "60s"},
        retry_config=_RETRIES,
    )
