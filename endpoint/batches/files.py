"""FileStore: files of clients and results of batches, in folders of the keys that they belong to.

<path>/<owner>/files/<id>/content      the bytes
<path>/<owner>/files/<id>/file.json    what they are, written after them: without it there is no file
<path>/_tmp/                           unfinished files (local disks only)
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import IO, Any, Literal

from pyarrow import fs

from endpoint.batches.ids import is_id, made_at
from pipeline.storage.location import Location
from pipeline.storage.whole_file import replace_file, replacement

Purpose = Literal["batch", "batch_output"]
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class StoredFile:
    """What is known of a file. Times are seconds since 1970."""

    id: str
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: Purpose

    def shown(self) -> dict[str, Any]:
        """Return the file as the API shows it."""
        return {**asdict(self), "object": "file", "status": "processed", "status_details": None}


class FileStore:
    """The files of all keys. Its methods wait for the storage, and raise OSError if that fails."""

    def __init__(self, path: str, clock: Callable[[], float] = time.time) -> None:
        """Keep files under a folder or a URI, which is made; `clock` returns seconds since 1970. Raises OSError."""
        self.root, self._clock = Location.parse(path), clock
        self.temporary = self.root.child("_tmp")
        (self.temporary if self.root.is_local else self.root).make_folder()

    @contextmanager
    def writing(self, owner: str, file_id: str) -> Iterator[IO[bytes]]:
        """Open the content of a file that is to be added; it appears whole when the block ends."""
        with replacement(self.content(owner, file_id)) as stream:
            yield stream

    def add(self, owner: str, file: StoredFile) -> None:
        """Add a file whose content has been written."""
        replace_file(self._metadata(owner, file.id), json.dumps(asdict(file)).encode(), self.temporary)

    def get(self, owner: str, file_id: str) -> StoredFile | None:
        """Return a file; None if the owner has none of this id, or it has expired."""
        file = self._read(owner, file_id)
        return None if file is None or file.expires_at <= self._clock() else file

    def _read(self, owner: str, file_id: str) -> StoredFile | None:
        if not is_id("file", file_id):
            return None
        content = self._metadata(owner, file_id).read_if_there()
        return None if content is None else StoredFile(**json.loads(content))

    def content(self, owner: str, file_id: str) -> Location:
        """Return where the bytes of a file are."""
        return self._folder(owner, file_id).child("content")

    def chunks(self, owner: str, file_id: str) -> Iterator[bytes]:
        """Yield the bytes of a file. Raises FileNotFoundError if it was deleted meanwhile."""
        with self.content(owner, file_id).open_file() as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                yield bytes(chunk)

    def ids(self, owner: str) -> list[str]:
        """Return the ids of an owner's files, the newest first; of some the content may be all that there is."""
        infos = self.root.child(f"{owner}/files").list()
        return sorted((info.base_name for info in infos if is_id("file", info.base_name)), reverse=True)

    def delete(self, owner: str, file_id: str) -> None:
        """Delete a file; one that is not there is no error."""
        self._metadata(owner, file_id).remove()
        self.content(owner, file_id).remove()
        folder = self._folder(owner, file_id)
        with suppress(FileNotFoundError):  # a store keeps a mark of the folder of a deleted file
            folder.retrying("deleting", lambda: folder.filesystem.delete_dir(folder.path))

    def delete_expired(self, owner: str, unfinished_s: float, in_use: Collection[str] = ()) -> list[str]:
        """Delete the owner's expired files that are not `in_use`, and what uploads left that died; return their ids.

        A file without metadata is left by an upload that died if it is older than `unfinished_s`.
        """
        deleted = []
        for file_id in self.ids(owner):
            if file_id in in_use:
                continue
            file = self._read(owner, file_id)
            left_at = made_at(file_id) + unfinished_s
            if (left_at if file is None else file.expires_at) <= self._clock():
                self.delete(owner, file_id)
                deleted.append(file_id)
        return deleted

    def owners(self) -> list[str]:
        """Return all owners that ever had a file or a batch."""
        infos = self.root.list()
        return [i.base_name for i in infos if i.type == fs.FileType.Directory and not i.base_name.startswith("_")]

    def _folder(self, owner: str, file_id: str) -> Location:
        return self.root.child(f"{owner}/files/{file_id}")

    def _metadata(self, owner: str, file_id: str) -> Location:
        return self._folder(owner, file_id).child("file.json")
