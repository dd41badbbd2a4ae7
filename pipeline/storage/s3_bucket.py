"""A bucket of S3 by obstore, for what pyarrow's client cannot ask: a PUT on a condition, a GET without a HEAD.

obstore finds credentials in fewer places than pyarrow (it reads no profile files), so each use has another way.
"""

from __future__ import annotations

import os
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

from obstore.store import S3Store
from pyarrow import fs

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig, S3Config

MOST_TRIES = 15  # of a request, as pyarrow's client makes; `Location.retrying` covers longer failures
_CREDENTIALS = {"AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"}
_RETRIES: RetryConfig = {
    "retry_timeout": timedelta(seconds=10),
    "backoff": {"init_backoff": timedelta(seconds=0.05), "max_backoff": timedelta(seconds=1), "base": 2},
}


def has_credentials() -> bool:
    """Return whether the environment has credentials. Elsewhere pyarrow finds some, and obstore searches long."""
    return bool(_CREDENTIALS & os.environ.keys())


def bucket_of(
    name: str, path: str, filesystem: fs.FileSystem, minutes: int = 1, max_tries: int = MOST_TRIES
) -> S3Store | None:
    """Return the bucket of a location, whose requests may take some minutes; None if it is not in S3.

    Raises obstore's BaseError, and ValueError, also where obstore would ask another endpoint than pyarrow.
    """
    address = urlsplit(name)
    if address.scheme != "s3":
        return None
    other = "AWS_ENDPOINT_URL_S3" if "endpoint_override" in address.query else "AWS_ENDPOINT"
    if other in os.environ:
        raise ValueError(f"obstore obeys {other}, and pyarrow does not")
    region = getattr(filesystem, "region", None) or "us-east-1"
    return _bucket(path.partition("/")[0], address.query, region, minutes, max_tries)


@lru_cache
def _bucket(bucket: str, query_text: str, region: str, minutes: int, max_tries: int) -> S3Store:
    """Return a bucket, with what pyarrow was told about it; credentials come from the environment.

    A bucket is kept, with its connections and what it was given as credentials.
    """
    query = {name: values[-1] for name, values in parse_qs(query_text).items()}
    config: S3Config = {"region": query.get("region", region)}
    if endpoint := query.get("endpoint_override"):
        config["endpoint"] = endpoint if "://" in endpoint else f"{query.get('scheme', 'https')}://{endpoint}"
    # An endpoint of the environment (AWS_ENDPOINT_URL) may be one of plain HTTP, too.
    options: ClientConfig = {"allow_http": True, "timeout": timedelta(minutes=minutes)}
    return S3Store(bucket, config=config, client_options=options, retry_config={**_RETRIES, "max_retries": max_tries})
