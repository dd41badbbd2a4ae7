"""BatchStore: the batches of all keys on storage. A reader sees a batch as it is or as it was, never half.

<path>/<owner>/batches/<id>/batch.json    the batch; written by the ingress that made it, then by its driver alone
<path>/<owner>/batches/<id>/cancel.json   asks the driver to cancel it
<path>/<owner>/batches/<id>/run/          the run directory of its rows (pipeline/run/directory.py)
"""

from __future__ import annotations

import json

from endpoint.batches.batch import CANCELLABLE, ENDED, Batch
from endpoint.batches.ids import is_id, made_at
from pipeline.storage.location import Location
from pipeline.storage.whole_file import create_file, replace_file

_TRIES = 5  # to read a file that is replaced meanwhile


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
