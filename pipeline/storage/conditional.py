"""A PUT to an S3 store that fails if the object is there (`If-None-Match: *`), by obstore: pyarrow cannot send that.

Stores that refuse it, or whose credentials obstore does not find (it reads no profile files), get a plain PUT. Then the
question to the ledger right before it decides alone which of two attempts writes.
"""

import logging
import re
from urllib.parse import quote

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, GenericError

from pipeline.logs import Event
from pipeline.storage.location import Location
from pipeline.storage.s3_bucket import bucket_of

_REFUSED = re.compile(r"NotImplemented|status code: (501|4(?!08|29)\d\d)\b")
_without: set[str] = set()  # buckets that get plain PUTs from this process, which said so once
_log = logging.getLogger(__name__)


def create_object(location: Location, content: bytes) -> bool | None:
    """Create the object; return False if another one was there first, and None if this store cannot tell.

    Raises OSError, which may be transient, if the store fails.
    """
    bucket, _, key = location.path.partition("/")
    if bucket in _without:
        return None
    try:
        minutes = 1 + len(content) // 1_500_000  # at 25 KB/s
        if (store := bucket_of(location.name, location.path, location.filesystem, minutes)) is None:
            return None
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
