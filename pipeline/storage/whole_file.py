"""Files that are written whole or not at all."""

import errno
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import IO, Any, NoReturn

from pipeline.storage.conditional import create_object
from pipeline.storage.location import Location

# The errors of a mount without hard links (some FUSE and SMB ones).
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


def create_file(location: Location, content: bytes, temporary: Location) -> bool:
    """Create the file; return True, or False if another writer's file was there first (theirs stays).

    On a local disk: a temporary file in the folder `temporary`, fsync, and a link to the final name, which fails if the
    name is taken. On S3: one PUT that fails if the name is taken (pipeline/storage/conditional.py). On other object
    stores: one PUT, which replaces an older file; that is harmless where two writers of one part write the same
    generations. Raises OSError, and leaves nothing behind then.
    """
    if not location.is_local:
        is_ours = location.retrying("writing", lambda: create_object(location, content))
        if is_ours is None:
            location.retrying("writing", lambda: _put(location, content))
        return is_ours is not False
    with _scratch_file(location, content, temporary) as scratch:
        return location.retrying("writing", lambda: _link(scratch, location))


def replace_file(location: Location, content: bytes, temporary: Location) -> None:
    """Write the file, in place of any older one. Raises OSError; the older one stays then."""
    if not location.is_local:
        location.retrying("writing", lambda: _put(location, content))
        return
    with _scratch_file(location, content, temporary) as scratch:
        location.retrying("writing", lambda: os.replace(scratch, location.path))


def to_json(value: Mapping[str, Any]) -> bytes:
    """Return the content of a small JSON file that people may read, too."""
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8")


@contextmanager
def replacement(location: Location) -> Iterator[IO[bytes]]:
    """Open a stream for content that need not fit in memory; it becomes the file, whole, when the block ends.

    If the block fails, an older file stays. A missing local folder is made. A device such as /dev/stdout is written
    as the block goes on. Raises OSError.
    """
    if not location.is_local:
        with tempfile.TemporaryFile() as scratch:
            yield scratch
            num_bytes = scratch.tell()
            location.retrying("writing", lambda: _upload(scratch, num_bytes, location))
        return
    if os.path.exists(location.path) and not os.path.isfile(location.path):
        with open(location.path, "wb") as stream:
            yield stream
        return
    path = os.path.realpath(location.path)  # a link stays a link
    os.makedirs(os.path.dirname(path), exist_ok=True)
    scratch_path = f"{path}.{uuid.uuid4().hex}"
    try:
        with open(scratch_path, "xb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(scratch_path, path)
    finally:
        if os.path.lexists(scratch_path):
            os.unlink(scratch_path)


@contextmanager
def _scratch_file(location: Location, content: bytes, temporary: Location) -> Iterator[str]:
    """Yield the path of a new, synced file in `temporary`, to which the block gives its final name."""
    scratch = os.path.join(temporary.path, f"{os.path.basename(location.path)}.{uuid.uuid4().hex}")
    try:
        location.retrying("writing", lambda: _write_synced(scratch, content))
        yield scratch
    finally:
        if os.path.lexists(scratch):  # half a file would keep a full disk full
            os.unlink(scratch)
    location.retrying("writing", lambda: _sync_folder(location))


def _write_synced(path: str, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _link(scratch: str, location: Location) -> bool:
    """Link the scratch file to the final name; return False if another writer's file has it.

    A try whose answer was lost may have made the link already.
    """
    try:
        os.link(scratch, location.path)
    except FileExistsError:
        return os.stat(scratch).st_nlink > 1
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        os.rename(scratch, location.path)
    return True


def _sync_folder(location: Location) -> None:
    """Make the folder's new entry survive a power cut."""
    folder = os.open(os.path.dirname(location.path), os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _put(location: Location, content: bytes) -> None:
    with location.filesystem.open_output_stream(location.path) as stream:
        stream.write(content)
    size = location.info().size
    if size == len(content):
        return
    try:
        found = location.filesystem.open_input_file(location.path).read()
    except FileNotFoundError:
        found = b""
    # Only this upload, cut short, may be removed: another attempt at the same unit may have put its file meanwhile.
    if content.startswith(found):
        _remove_short(location, len(content), len(found))
    raise OSError(f"{location.name}: {len(content)} bytes were sent and {size} are there; to be sent again")


def _upload(scratch: IO[bytes], num_bytes: int, location: Location) -> None:
    scratch.seek(0)
    with location.filesystem.open_output_stream(location.path) as stream:
        shutil.copyfileobj(scratch, stream)
    size = location.info().size
    if size != num_bytes:
        _remove_short(location, num_bytes, size)


def _remove_short(location: Location, num_bytes: int, size: int | None) -> NoReturn:
    """Remove an upload whose write failed midway, which Arrow closes and so completes. Raises an OSError to retry."""
    with suppress(FileNotFoundError):
        location.filesystem.delete_file(location.path)
    raise OSError(f"{location.name}: {num_bytes} bytes were sent and {size} arrived; the file was removed")
