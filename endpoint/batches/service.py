"""BatchService: what clients ask of files and batches, over the storage. Rows are run by a driver elsewhere."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from itertools import islice
from typing import Any

from endpoint.batches.batch import CANCELLABLE, WINDOW_S, Batch, BatchSettings
from endpoint.batches.store import BatchStore, FileStore, StoredFile, is_id
from endpoint.batches.store import batch_id as id_of_batch
from endpoint.batches.upload import BatchRequest, UploadForm, store
from endpoint.http.errors import ApiError, server_busy, wrong
from endpoint.http.origin import Origin
from pipeline.errors import shown_name
from pipeline.run.unit_rows import read_ahead

_READS_AT_ONCE = 16  # of small files, as stores answer late


class BatchService:
    """Files and batches of all keys. Each method is about one owner's, and knows no other's."""

    def __init__(
        self,
        settings: BatchSettings,
        models: Sequence[str],
        wake: Callable[[], Awaitable[None]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Keep files under `settings.path`; `wake` tells the driver to look, and `models` are served.

        Raises ValueError or OSError if the folder cannot be used.
        """
        assert settings.path is not None
        self.settings, self._wake, self._clock = settings, wake, clock
        self._model = models[0] if len(models) == 1 else None
        self.files = FileStore(settings.path, clock)
        self.batches = BatchStore(self.files.root, self.files.temporary)
        self._changing = asyncio.Lock()  # so that several requests together stay within a key's quota

    async def add_file(self, owner: str, form: UploadForm) -> StoredFile:
        """Add an upload."""
        async with self._changing:
            return await asyncio.to_thread(store, self.files, owner, form, self.settings, self._clock())

    async def file(self, owner: str, file_id: str) -> StoredFile:
        """Return a file. Raises ApiError (404)."""
        file = await asyncio.to_thread(self.files.get, owner, file_id)
        if file is None:
            raise _not_found("file", file_id)
        return file

    async def list_files(
        self, owner: str, after: str | None, limit: int, order: str, purpose: str | None
    ) -> dict[str, Any]:
        """Return a page of an owner's files."""
        _check_cursor("file", after)

        def find() -> list[StoredFile]:
            ids = self.files.ids(owner)
            wanted = _behind(ids, after, is_ascending=order == "asc")
            found = read_ahead(partial(self.files.get, owner), wanted, _READS_AT_ONCE)
            return list(islice((f for f in found if f is not None and purpose in (None, f.purpose)), limit + 1))

        return _page(await asyncio.to_thread(find), limit)

    async def delete_file(self, owner: str, file_id: str) -> dict[str, Any]:
        """Delete a file. Raises ApiError (404), or 400 for the input of a batch that has not ended."""
        async with self._changing:
            await self.file(owner, file_id)
            unfinished = await asyncio.to_thread(self.batches.unfinished, owner)
            if user := next((batch for batch in unfinished if batch.input_file_id == file_id), None):
                message = f"The batch {user.id} reads this file; cancel it, or wait until it has ended."
                raise ApiError(400, message, param="file_id", code="file_in_use")
            await asyncio.to_thread(self.files.delete, owner, file_id)
        return {"id": file_id, "object": "file", "deleted": True}

    async def create(self, owner: str, request: BatchRequest, origin: Origin | None = None) -> Batch:
        """Make a batch of an uploaded file, which is checked later. Raises ApiError.

        A process that is lost may have made it before it could say so: the batch of an `origin` is made once.
        """
        new_id = id_of_batch(origin or Origin())
        async with self._changing:
            if (made := await asyncio.to_thread(self.batches.view, owner, new_id)) is not None:
                await self._wake()
                return made
            file = await asyncio.to_thread(self.files.get, owner, request.input_file_id)
            if file is None:
                raise wrong("input_file_id", "there is no such file; upload it first", "file_not_found")
            if file.purpose != "batch":
                raise wrong("input_file_id", "this file is a result of a batch, not the input of one")
            unfinished = await asyncio.to_thread(self.batches.unfinished, owner)
            if len(unfinished) >= self.settings.max_in_progress:
                raise server_busy(f"this key has {len(unfinished)} unfinished batches, the most that it may have")
            now, keep = self._clock(), request.output_expires_after
            batch = Batch(
                id=new_id,
                owner=owner,
                endpoint=request.endpoint,
                input_file_id=file.id,
                model=self._model,
                created_at=int(now),
                expires_at=int(now) + WINDOW_S,
                metadata=request.metadata,
                output_keep_s=None if keep is None else float(keep["seconds"]),
            )
            await asyncio.to_thread(self.batches.create, batch)
        await self._wake()
        return batch

    async def batch(self, owner: str, batch_id: str) -> Batch:
        """Return a batch. Raises ApiError (404)."""
        batch = await asyncio.to_thread(self.batches.view, owner, batch_id)
        if batch is None:
            raise _not_found("batch", batch_id)
        return batch

    async def list_batches(self, owner: str, after: str | None, limit: int) -> dict[str, Any]:
        """Return a page of an owner's batches, the newest first."""
        _check_cursor("batch", after)

        def find() -> list[Batch]:
            ids = _behind(self.batches.ids(owner), after, is_ascending=False)
            found = read_ahead(partial(self.batches.view, owner), ids, _READS_AT_ONCE)
            return list(islice((batch for batch in found if batch is not None), limit + 1))

        return _page(await asyncio.to_thread(find), limit)

    async def cancel(self, owner: str, batch_id: str) -> Batch:
        """Ask for a batch to be cancelled, and return it. Raises ApiError: 404, or 400 for one that has ended."""
        batch = await self.batch(owner, batch_id)
        if batch.status not in (*CANCELLABLE, "cancelled"):
            message = f"A batch with status '{batch.status}' cannot be cancelled."
            raise ApiError(400, message, param="batch_id", code="batch_not_cancellable")
        if batch.status != "cancelled":
            await asyncio.to_thread(self.batches.ask_to_cancel, batch, self._clock())
            await self._wake()
        return await self.batch(owner, batch_id)


def _not_found(kind: str, id_: str) -> ApiError:
    message = f"There is no {kind} '{shown_name(id_)}'."
    return ApiError(404, message, param=f"{kind}_id", code=f"{kind}_not_found")


def _check_cursor(kind: Any, after: str | None) -> None:
    if after is not None and not is_id(kind, after):
        raise wrong("after", f"expected the id of a {kind}")


def _behind(ids_newest_first: Collection[str], after: str | None, *, is_ascending: bool) -> list[str]:
    """Return the ids behind a cursor in the order that is asked for."""
    ids = sorted(ids_newest_first, reverse=not is_ascending)
    if after is None:
        return ids
    return [id_ for id_ in ids if (id_ > after if is_ascending else id_ < after)]


def _page(items: list[Any], limit: int) -> dict[str, Any]:
    """Return a page of a list of the API, of items of which one more than wanted was looked for."""
    shown = items[:limit]
    return {
        "object": "list",
        "data": [item.shown() for item in shown],
        "first_id": shown[0].id if shown else None,
        "last_id": shown[-1].id if shown else None,
        "has_more": len(items) > limit,
    }
