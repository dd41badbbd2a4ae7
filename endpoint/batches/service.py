"""BatchService: what clients ask of files and batches, over the storage. Rows are run by a driver elsewhere.

An upload is a multipart form, which Starlette writes to a temporary file as it comes.
https://platform.openai.com/docs/api-reference/batch/create
"""

import asyncio
import shutil
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import IO, Any

from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.requests import Request

from endpoint.batches.batch import CANCELLABLE, WINDOW_S, Batch, BatchSettings
from endpoint.batches.store import BatchStore, FileStore, Kind, StoredFile, is_id, new_id
from endpoint.batches.store import batch_id as id_of_batch
from endpoint.http.errors import ApiError, server_busy, wrong
from endpoint.http.origin import Origin
from pipeline.errors import FieldError, shown_name
from pipeline.requests.asked import LABELS
from pipeline.requests.body import Body, asks, integer, one_of, options, text
from pipeline.requests.texts import KINDS
from pipeline.run.reading import read_ahead

EXPIRY = options("anchor", "seconds", anchor=one_of("created_at"), seconds=integer(ge=3600, le=30 * 86_400))
_FIELDS = frozenset({"file", "purpose", "expires_after[anchor]", "expires_after[seconds]"})
_MAX_PART_BYTES = 4096  # of a field that is no file
_MAX_NAME = 255
_READS_AT_ONCE = 16  # of small files, as stores answer late


@dataclass(frozen=True, kw_only=True)
class BatchRequest(Body):
    """A batch that is to be made of an uploaded file."""

    input_file_id: str = asks(text(64), "The file, which holds a request in each line.", is_required=True)
    endpoint: str = asks(one_of(*KINDS), "The path of all requests of the file.", is_required=True)
    completion_window: str = asks(one_of("24h"), "How long the batch may take.", is_required=True)
    metadata: dict[str, str] | None = asks(LABELS, "Kept with the batch, and shown with it.")
    output_expires_after: dict[str, Any] | None = asks(EXPIRY, "How long the results are kept.")


async def read_form(request: Request, settings: BatchSettings, now: float) -> tuple[FormData, IO[bytes], StoredFile]:
    """Return an upload and what it is, behind the form that holds it, which the caller closes. Raises ApiError."""
    essence = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if essence != "multipart/form-data":
        raise ApiError(415, "Send the file as multipart/form-data, with the fields file and purpose.")
    try:
        form = await request.form(max_files=1, max_fields=len(_FIELDS), max_part_size=_MAX_PART_BYTES)
    except (HTTPException, MultiPartException):
        message = "The body is no multipart form with one file, purpose and expires_after."
        raise ApiError(400, message, code="invalid_form") from None
    try:
        return form, *_checked(form, settings, now)
    except (ApiError, FieldError):
        await form.close()
        raise


def _checked(form: FormData, settings: BatchSettings, now: float) -> tuple[IO[bytes], StoredFile]:
    file, purpose = form.get("file"), form.get("purpose")
    if unknown := sorted(set(form) - _FIELDS):
        raise wrong(shown_name(unknown[0]), "there is no such field", "unknown_parameter")
    for name, value in (("file", file), ("purpose", purpose)):
        if value is None:
            raise wrong(name, "is required", "missing_required_parameter")
    if twice := sorted(name for name in set(form) if len(form.getlist(name)) > 1):
        raise wrong(twice[0], "it occurs more than once")
    if not isinstance(file, UploadFile):
        raise wrong("file", "expected a file")
    if purpose != "batch":
        raise wrong("purpose", "expected 'batch', the only purpose of files here")
    if (file.size or 0) > settings.max_file_bytes:
        message = f"The file is larger than {settings.max_file_bytes} bytes."
        raise ApiError(413, message, param="file", code="body_too_large")
    filename = (file.filename or "file").replace("\\", "/").rpartition("/")[2][:_MAX_NAME] or "file"
    printable = "".join(character if character.isprintable() else "_" for character in filename)
    stored = StoredFile(
        id=new_id("file"),
        bytes=file.size or 0,
        created_at=int(now),
        expires_at=int(now + _keep_s(form, settings)),
        filename=printable,
        purpose="batch",
    )
    return file.file, stored


def _keep_s(form: FormData, settings: BatchSettings) -> float:
    anchor, seconds = form.get("expires_after[anchor]"), form.get("expires_after[seconds]")
    if anchor is None and seconds is None:
        return settings.keep_s
    is_number = isinstance(seconds, str) and seconds.isascii() and seconds.isdecimal() and len(seconds) < 10
    given = {"anchor": anchor, "seconds": int(str(seconds)) if is_number else seconds}
    return float(EXPIRY.read("expires_after", given)["seconds"])


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
        self.settings, self._wake, self.clock = settings, wake, clock
        self._model = models[0] if len(models) == 1 else None
        self.files = FileStore(settings.path, clock)
        self.batches = BatchStore(self.files.root, self.files.temporary)
        self._changing = asyncio.Lock()  # so that several requests together stay within a key's quota

    async def add_file(self, owner: str, content: IO[bytes], file: StoredFile) -> StoredFile:
        """Copy an upload to the storage. Raises ApiError (429) for a key that has too many files."""

        def add() -> StoredFile:
            if len(self.files.ids(owner)) >= self.settings.max_files:
                raise server_busy(f"this key has {self.settings.max_files} files already; delete some")
            with self.files.writing(owner, file.id) as stream:
                shutil.copyfileobj(content, stream, 1 << 20)
            self.files.add(owner, file)
            return file

        async with self._changing:
            return await asyncio.to_thread(add)

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
        ids, get = partial(self.files.ids, owner), partial(self.files.get, owner)
        return await _page("file", ids, get, after, limit, is_ascending=order == "asc", purpose=purpose)

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
            now, keep = self.clock(), request.output_expires_after
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
        return await _page("batch", partial(self.batches.ids, owner), partial(self.batches.view, owner), after, limit)

    async def cancel(self, owner: str, batch_id: str) -> Batch:
        """Ask for a batch to be cancelled, and return it. Raises ApiError: 404, or 400 for one that has ended."""
        batch = await self.batch(owner, batch_id)
        if batch.status not in (*CANCELLABLE, "cancelled"):
            message = f"A batch with status '{batch.status}' cannot be cancelled."
            raise ApiError(400, message, param="batch_id", code="batch_not_cancellable")
        if batch.status != "cancelled":
            await asyncio.to_thread(self.batches.ask_to_cancel, batch, self.clock())
            await self._wake()
        return await self.batch(owner, batch_id)


def _not_found(kind: str, id_: str) -> ApiError:
    message = f"There is no {kind} '{shown_name(id_)}'."
    return ApiError(404, message, param=f"{kind}_id", code=f"{kind}_not_found")


async def _page(
    kind: Kind,
    ids: Callable[[], list[str]],
    get: Callable[[str], Any],
    after: str | None,
    limit: int,
    *,
    is_ascending: bool = False,
    purpose: str | None = None,
) -> dict[str, Any]:
    """Return a page of a list of the API: the items behind a cursor in the order that is asked for."""
    if after is not None and not is_id(kind, after):
        raise wrong("after", f"expected the id of a {kind}")

    def find() -> list[Any]:
        wanted = sorted(ids(), reverse=not is_ascending)
        if after is not None:
            wanted = [id_ for id_ in wanted if (id_ > after if is_ascending else id_ < after)]
        found = (item for item in read_ahead(get, wanted, _READS_AT_ONCE) if item is not None)
        return list(islice((item for item in found if purpose is None or item.purpose == purpose), limit + 1))

    items = await asyncio.to_thread(find)
    shown = items[:limit]
    return {
        "object": "list",
        "data": [item.shown() for item in shown],
        "first_id": shown[0].id if shown else None,
        "last_id": shown[-1].id if shown else None,
        "has_more": len(items) > limit,
    }
