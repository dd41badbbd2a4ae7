"""A folder's files by several listings at once: S3 names 1,000 a page, and a page is asked for after the one before."""

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store
from pyarrow import fs

from pipeline.storage.location import Location
from pipeline.storage.s3_bucket import bucket_of, has_credentials

_PAGE = 1000
_FEWEST, _MOST_AT_ONCE = 10_000, 16  # units of a listing of its own, and such listings at once
_PLAIN = re.compile(r"[\w.=/-]*", re.ASCII)  # of other names obstore and pyarrow may mean different objects


def list_parts(folder: Location, num_units: int) -> list[fs.FileInfo]:
    """List the files of a run's folder in which each unit may have a part, in no order. Raises OSError."""
    step = max(_FEWEST, -(-num_units // _MOST_AT_ONCE))
    return list_files(folder, [f"part-{unit_id:09d}" for unit_id in range(step, num_units, step)])


def list_files(folder: Location, borders: Sequence[str]) -> list[fs.FileInfo]:
    """List the files of a folder, in no order; in S3 those between two names at a time, all such ranges at once.

    `borders` are rising. Raises OSError.
    """
    try:
        is_plain = borders and has_credentials() and _PLAIN.fullmatch(folder.path)
        bucket = bucket_of(folder.name, folder.path, folder.filesystem) if is_plain else None
        if bucket is not None:
            prefix = folder.path.partition("/")[2].rstrip("/") + "/"
            names = ["", *borders, "\U0010ffff"]
            with ThreadPoolExecutor(len(names) - 1) as threads:
                found = threads.map(lambda both: _between(bucket, folder, prefix, *both), pairwise(names))
                return [info for each in found for info in each]
    except (BaseError, OSError, ValueError):  # pyarrow says what fails, if it fails there, too
        pass
    return [info for info in folder.list() if info.is_file]


def _between(bucket: S3Store, folder: Location, prefix: str, after: str, last: str) -> list[fs.FileInfo]:
    """List the files whose names come behind `after`, up to `last`."""
    found: list[fs.FileInfo] = []
    newest = after
    for page in obstore.list(bucket, prefix, offset=prefix + after if after else None, chunk_size=_PAGE):
        for each in page:
            name = each["path"].removeprefix(prefix)
            if name == each["path"] or "/" in name:  # the mark of the folder itself, or of a folder below
                continue
            if name <= newest:
                raise ValueError(f"{name} is listed behind {newest}: this store has an order of its own")
            if name > last:
                return found
            newest = name
            path = f"{folder.path.rstrip('/')}/{name}"
            found.append(fs.FileInfo(path, fs.FileType.File, mtime=each["last_modified"], size=each["size"]))
    return found
