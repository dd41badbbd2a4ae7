"""Write a file whole or not at all."""

from __future__ import annotations

import errno
import os
import uuid

from pipeline.location import Location

# What a mount without hard links (some FUSE and SMB ones) says.
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


def create_file(location: Location, content: bytes, temporary: Location) -> bool:
    """True if this call made the file, False if another writer's was there first (theirs stays).

    On a local disk: a temporary file in the folder `temporary`, fsync, link to the final name, which fails if
    the name is taken. An object store has no such link: one PUT to the final name, which replaces what was
    there; two writers of one part write the same generations, so the last one is harmless.
    """
    if not location.is_local:
        _put(location, content)
        return True
    scratch = _write_scratch(location, content, temporary)
    try:
        os.link(scratch, location.path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        os.rename(scratch, location.path)
        return True
    finally:
        if os.path.lexists(scratch):
            os.unlink(scratch)
        _sync_folder(location)
    return True


def replace_file(location: Location, content: bytes, temporary: Location) -> None:
    """Write the file, in place of what may be there."""
    if not location.is_local:
        _put(location, content)
        return
    os.replace(_write_scratch(location, content, temporary), location.path)
    _sync_folder(location)


def _write_scratch(location: Location, content: bytes, temporary: Location) -> str:
    """The path of a new, synced file in `temporary` that holds `content`."""
    scratch = os.path.join(temporary.path, f"{os.path.basename(location.path)}.{uuid.uuid4().hex}")
    with open(scratch, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return scratch


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
    if size != len(content):  # Arrow closes, and so completes, an upload whose write failed midway
        location.filesystem.delete_file(location.path)
        raise OSError(f"{location.name}: {len(content)} bytes were sent and {size} arrived; the file was removed")
