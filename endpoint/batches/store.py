"""FileStore and BatchStore: files and batches on storage, in folders of the keys that they belong to.

<path>/<owner>/files/<id>/content         the bytes of a file of a client, or of a result of a batch
<path>/<owner>/files/<id>/file.json       what they are, written after them: without it there is no file
<path>/<owner>/batches/<id>/batch.json    the batch; written by the ingress that made it, then by its driver alone
<path>/<owner>/batches/<id>/cancel.json   asks the driver to cancel it
<path>/<owner>/batches/<id>/run/          the run directory of its rows (pipeline/run/directory.py)
<path>/_tmp/                              unfinished files (local disks only)

Ids sort by the time at which they were made, and are safe as names of files. A reader sees a batch as it is or as it
was, never half.
"""

import json
import re
import secrets
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import IO, Any, Literal

from pyarrow import fs

from endpoint.batches.batch import CANCELLABLE, ENDED, Batch
from endpoint.http.origin import Origin
from pipeline.storage.location import Location
from pipeline.storage.whole_file import create_file, replace_file, replacement

Kind = Literal["file", "batch"]
_SEPARATOR = {"file": "-", "batch": "_"}
_BODY = re.compile(r"[0-9a-f]{24}")
Purpose = Literal["batch", "batch_output"]
_CHUNK_BYTES = 1 << 20
_TRIES = 5  # to read a file that is replaced meanwhile


def new_id(kind: Kind) -> str:
    """Return an id that no other process returns: nanoseconds since 1970, and random digits."""
    return f"{kind}{_SEPARATOR[kind]}{time.time_ns():016x}{secrets.token_hex(4)}"


def batch_id(origin: Origin) -> str:
    """Return the id of the batch that a request makes, the same whichever process is asked to make it."""
    return f"batch_{origin.created_ns:016x}{origin.draw('batch', 2**32):08x}"


def result_id(batch_id: str, name: Literal["output", "errors"]) -> str:
    """Return the id of a result of a batch, which is the same whenever it is made: a kill may repeat that."""
    body = batch_id.removeprefix("batch_")
    return f"file-{body[:16]}{sha256(f'{batch_id} {name}'.encode()).hexdigest()[:8]}"


def is_id(kind: Kind, text: str) -> bool:
    """Tell whether this text can be an id; any other names nothing."""
    prefix = kind + _SEPARATOR[kind]
    return text.startswith(prefix) and _BODY.fullmatch(text[len(prefix) :]) is not None


def made_at(id_: str) -> float:
    """Return the time at which the thing of an id was made, in seconds since 1970."""
    return int(id_[-24:-8], 16) / 1e9


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

    def writing(self, owner: str, file_id: str) -> AbstractContextManager[IO[bytes]]:
        """Open the content of a file that is to be added; it appears whole when the block ends."""
        return replacement(self.content(owner, file_id))

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


class BatchStore:
    """The batches under one folder or URI. Its methods wait for the storage, and raise OSError if that fails."""

    def __init__(self, root: Location, temporary: Location) -> None:
        """Keep batches under `root`, with unfinished files in `temporary`."""
        self._root, self._temporary = root, temporary
        self._ended: dict[str, Batch] = {}  # they never change again

    def create(self, batch: Batch) -> None:
        """Write a new batch."""
        location = self._folder(batch.owner, batch.id)
        location.make_folder()
        create_file(location.child("batch.json"), batch.to_bytes(), self._temporary)

    def replace(self, batch: Batch) -> None:
        """Write the newest state of a batch, unless it has ended by what is there."""
        found = self.read(batch.owner, batch.id)
        if found is not None and found.status not in ENDED:
            content = batch.to_bytes()
            replace_file(self._folder(batch.owner, batch.id).child("batch.json"), content, self._temporary)

    def read(self, owner: str, batch_id: str) -> Batch | None:
        """Return a batch; None if the owner has none of this id."""
        if not is_id("batch", batch_id):
            return None
        if (ended := self._ended.get(batch_id)) is not None:
            return ended if ended.owner == owner else None
        batch = _read_whole(self._folder(owner, batch_id).child("batch.json"))
        if batch is None:
            return None
        if batch.status in ENDED:
            self._ended[batch.id] = batch
        return batch

    def view(self, owner: str, batch_id: str) -> Batch | None:
        """Return a batch as clients see it: one that is asked to be cancelled is cancelling at once."""
        batch = self.read(owner, batch_id)
        if batch is None or batch.status not in CANCELLABLE or batch.status == "cancelling":
            return batch
        asked_at = self.cancelled_at(batch)
        return batch if asked_at is None else batch.become("cancelling", asked_at)

    def ask_to_cancel(self, batch: Batch, now: float) -> None:
        """Ask the driver of a batch to cancel it; the first time that this was asked counts."""
        content = json.dumps({"at": int(now)}).encode()
        create_file(self._folder(batch.owner, batch.id).child("cancel.json"), content, self._temporary)

    def cancelled_at(self, batch: Batch) -> int | None:
        """Return when the client asked to cancel a batch; None if it did not."""
        content = self._folder(batch.owner, batch.id).child("cancel.json").read_if_there()
        return None if content is None else int(json.loads(content)["at"])

    def ids(self, owner: str) -> list[str]:
        """Return the ids of an owner's batches, the newest first."""
        infos = self._root.child(f"{owner}/batches").list()
        return sorted((info.base_name for info in infos if is_id("batch", info.base_name)), reverse=True)

    def unfinished(self, owner: str) -> list[Batch]:
        """Return the batches of an owner that have not ended, the oldest first."""
        found = (self.read(owner, batch_id) for batch_id in reversed(self.ids(owner)))
        return [batch for batch in found if batch is not None and batch.status not in ENDED]

    def run(self, batch: Batch) -> Location:
        """Return where the run directory of a batch is, or will be."""
        return self._folder(batch.owner, batch.id).child("run")

    def delete_old(self, owner: str, ended_before: float) -> list[str]:
        """Delete the owner's batches that ended before this time, with their run directories; return their ids."""
        deleted = []
        for batch_id in self.ids(owner):
            batch = self.read(owner, batch_id) if made_at(batch_id) < ended_before else None
            if batch is not None and batch.status in ENDED and batch.changed_at[batch.status] < ended_before:
                folder = self._folder(owner, batch_id)
                folder.child("batch.json").remove()
                folder.retrying("deleting", lambda at=folder: at.filesystem.delete_dir(at.path))  # type: ignore[misc]
                self._ended.pop(batch_id, None)
                deleted.append(batch_id)
        return deleted

    def _folder(self, owner: str, batch_id: str) -> Location:
        return self._root.child(f"{owner}/batches/{batch_id}")


def _read_whole(location: Location) -> Batch | None:
    """Return the batch in a file; None if there is none. Raises ValueError if the file is damaged.

    pyarrow asks a store for the size of a file and then for that many bytes; if the file is replaced by a longer one
    in between, its end is missing.
    """
    for tries_left in reversed(range(_TRIES)):
        content = location.read_if_there()
        try:
            return None if content is None else Batch.from_bytes(content)
        except ValueError:
            if not tries_left:
                raise
    return None
