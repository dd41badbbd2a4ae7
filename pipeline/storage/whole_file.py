"""Write a file whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, NoReturn

from pipeline.storage.location import Location

# What a mount without hard links (some FUSE and SMB ones) says.
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


def create_file(location: Location, content: bytes, temporary: Location) -> bool:
    """True if this call made the file, False if another writer's was there first (theirs stays).

    On a local disk: a temporary file in the folder `temporary`, fsync, link to the final name, which fails if
    the name is taken. On an object store: one PUT to the final name, which replaces what was there. S3 could refuse a
    second one (`If-None-Match: *`), but pyarrow has no way to send that header (26.0: `metadata=` knows a few others
    and drops it); two writers of one part write the same generations, so the last one is harmless. Raises OSError,
    and leaves nothing behind then.
    """
    if not location.is_local:
        location.retrying("writing", lambda: _put(location, content))
        return True
    scratch = location.retrying("writing", lambda: _write_scratch(location, content, temporary))
    try:
        return location.retrying("writing", lambda: _link(scratch, location))
    finally:
        if os.path.lexists(scratch):
            os.unlink(scratch)
        location.retrying("writing", lambda: _sync_folder(location))


def replace_file(location: Location, content: bytes, temporary: Location) -> None:
    """Write the file, in place of what may be there. Raises OSError; what was there stays then."""
    if not location.is_local:
        location.retrying("writing", lambda: _put(location, content))
        return
    scratch = location.retrying("writing", lambda: _write_scratch(location, content, temporary))
    try:
        location.retrying("writing", lambda: os.replace(scratch, location.path))
    finally:
        if os.path.lexists(scratch):
            os.unlink(scratch)
    location.retrying("writing", lambda: _sync_folder(location))


@contextmanager
def replacement(location: Location) -> Iterator[IO[bytes]]:
    """A stream for content that need not fit in memory: it becomes the file, whole, when the block ends.

    If the block fails, what was there stays. A missing local folder is made. What is no regular file, such as
    /dev/stdout, is written as it goes. Raises OSError.
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
    path = os.path.realpath(location.path)  # a link stays one
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


def _write_scratch(location: Location, content: bytes, temporary: Location) -> str:
    """The path of a new, synced file in `temporary` that holds `content`."""
    scratch = os.path.join(temporary.path, f"{os.path.basename(location.path)}.{uuid.uuid4().hex}")
    try:
        with open(scratch, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError:  # half a file on a full disk would keep it full
        if os.path.lexists(scratch):
            os.unlink(scratch)
        raise
    return scratch


def _link(scratch: str, location: Location) -> bool:
    """Whether the scratch file got the final name, in this try or in one whose answer was lost."""
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
        there = location.filesystem.open_input_file(location.path).read()
    except FileNotFoundError:
        there = b""
    # Only what is our own upload, cut, may go: another attempt at the same unit may have put its whole file meanwhile.
    if content.startswith(there):
        _remove_short(location, len(content), len(there))
    raise OSError(f"{location.name}: {len(content)} bytes were sent and {size} are there; to be sent again")


def _upload(scratch: IO[bytes], num_bytes: int, location: Location) -> None:
    scratch.seek(0)
    with location.filesystem.open_output_stream(location.path) as stream:
        shutil.copyfileobj(scratch, stream)
    size = location.info().size
    if size != num_bytes:
        _remove_short(location, num_bytes, size)


def _remove_short(location: Location, num_bytes: int, size: int | None) -> NoReturn:
    """Arrow closes, and so completes, an upload whose write failed midway. Raises OSError: it can be tried again."""
    with suppress(FileNotFoundError):
        location.filesystem.delete_file(location.path)
    raise OSError(f"{location.name}: {num_bytes} bytes were sent and {size} arrived; the file was removed")
