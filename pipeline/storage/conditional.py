"""What obstore asks of an S3 store and pyarrow cannot: a PUT that fails if the object is there, a GET without a HEAD.

Stores that refuse the header `If-None-Match: *`, or whose credentials obstore does not find (it reads no profile
files), get a plain PUT. Then the question to the ledger right before it decides alone which of two attempts writes.
"""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, quote, urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, GenericError
from obstore.store import S3Store

from pipeline.logs import Event

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig, S3Config

    from pipeline.storage.location import Location

SMALL = 1 << 18  # bytes
_REFUSED = re.compile(r"NotImplemented|status code: (501|4(?!08|29)\d\d)\b")
# As pyarrow's client does; `Location.retrying` covers longer failures.
_RETRIES: RetryConfig = {
    "retry_timeout": timedelta(seconds=10),
    "backoff": {"init_backoff": timedelta(seconds=0.05), "max_backoff": timedelta(seconds=1), "base": 2},
}
_without: set[str] = set()  # buckets that get plain PUTs from this process, which said so once
_log = logging.getLogger(__name__)
# Without one of these, pyarrow may find credentials where obstore does not look, and obstore would look for long.
_CREDENTIALS = {"AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"}
MOST_IN_VAIN = 32
_in_vain: Counter[str] = Counter()  # by bucket: reads by `read_small` that pyarrow had to repeat


def read_small(location: Location) -> bytes | None:
    """Return an object of at most SMALL bytes by one request, for less than half of what the two of pyarrow take.

    Return None for a larger one, for other stores, and after any failure: pyarrow then tries again, or says what it is.
    A process that has read a bucket in vain a few times leaves it to pyarrow.
    """
    bucket, _, key = location.path.partition("/")
    address = urlsplit(location.name)
    if address.scheme != "s3" or _in_vain[bucket] >= MOST_IN_VAIN or not _CREDENTIALS & os.environ.keys():
        return None
    store = _store(bucket, address.query, _region(location), minutes=1, max_retries=0)
    try:
        found = obstore.get(store, key, options={"range": (0, SMALL)})
        if found.meta["size"] <= SMALL:
            return bytes(found.bytes())
    except FileNotFoundError:
        return None
    except (BaseError, OSError, ValueError):
        pass  # as for one that is too large
    _in_vain[bucket] += 1
    return None


def create_object(location: Location, content: bytes) -> bool | None:
    """Create the object; return False if another one was there first, and None if this store cannot tell.

    Raises OSError, which may be transient, if the store fails.
    """
    bucket, _, key = location.path.partition("/")
    address = urlsplit(location.name)
    if address.scheme != "s3" or bucket in _without:
        return None
    minutes = 1 + len(content) // 1_500_000  # at 25 KB/s
    try:
        store = _store(bucket, address.query, _region(location), minutes, max_retries=15)
        obstore.put(store, key, content, mode="create", use_multipart=False)
    except (BaseError, ValueError) as error:  # ValueError: a key that obstore does not take, such as a//b
        first_line = (str(error).splitlines() or [""])[0]
        if isinstance(error, AlreadyExistsError):
            if (found := location.read_if_there()) is None:  # HTTP status 409: others write or delete it now
                raise OSError(f"HTTP status 503 or no answer: {first_line}") from error
            return found == content  # perhaps by a try of ours whose answer was lost
        # Other requests are those for credentials, which pyarrow finds in more places.
        is_of_object = isinstance(error, GenericError) and quote(location.short_name) in first_line
        if is_of_object and not _REFUSED.search(first_line):
            raise OSError(f"HTTP status 503 or no answer: {first_line}") from error
        _without.add(bucket)
        _log.warning(Event("no conditional writes", bucket=bucket, failure=first_line))
        return None
    return True


def _region(location: Location) -> str:
    return getattr(location.filesystem, "region", None) or "us-east-1"


@lru_cache
def _store(bucket: str, query_text: str, region: str, minutes: int, max_retries: int) -> S3Store:
    """Return a bucket, with what pyarrow was told about it; credentials come from the environment.

    A request may take some minutes. A store is kept, with its connections and what it was given as credentials.
    """
    query = {name: values[-1] for name, values in parse_qs(query_text).items()}
    config: S3Config = {"region": query.get("region", region)}
    if endpoint := query.get("endpoint_override"):
        config["endpoint"] = endpoint if "://" in endpoint else f"{query.get('scheme', 'https')}://{endpoint}"
    # An endpoint of the environment (AWS_ENDPOINT_URL) may be one of plain HTTP, too.
    options: ClientConfig = {"allow_http": True, "timeout": timedelta(minutes=minutes)}
    return S3Store(bucket, config=config, client_options=options, retry_config={**_RETRIES, "max_retries": max_retries})
