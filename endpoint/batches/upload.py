"""Requests of the Batch API: an upload, which Starlette writes to a temporary file as it comes, and a new batch.

https://platform.openai.com/docs/api-reference/batch/create
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import IO, Any

from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.requests import Request

from endpoint.batches.batch import BatchSettings
from endpoint.batches.store import FileStore, Purpose, StoredFile, new_id
from endpoint.http.errors import ApiError, server_busy, wrong
from pipeline.errors import FieldError, shown_name
from pipeline.requests.asked import LABELS
from pipeline.requests.body import Body, asks, integer, one_of, options, text
from pipeline.requests.texts import KINDS

EXPIRY = options("anchor", "seconds", anchor=one_of("created_at"), seconds=integer(ge=3600, le=30 * 86_400))
_FIELDS = frozenset({"file", "purpose", "expires_after[anchor]", "expires_after[seconds]"})
_MAX_PART_BYTES = 4096  # of a field that is no file
_MAX_NAME = 255


@dataclass(frozen=True, kw_only=True)
class BatchRequest(Body):
    """A batch that is to be made of an uploaded file."""

    input_file_id: str = asks(text(64), "The file, which holds a request in each line.", is_required=True)
    endpoint: str = asks(one_of(*KINDS), "The path of all requests of the file.", is_required=True)
    completion_window: str = asks(one_of("24h"), "How long the batch may take.", is_required=True)
    metadata: dict[str, str] | None = asks(LABELS, "Kept with the batch, and shown with it.")
    output_expires_after: dict[str, Any] | None = asks(EXPIRY, "How long the results are kept.")


@dataclass(frozen=True)
class UploadForm:
    """The checked fields of an upload."""

    content: IO[bytes]
    num_bytes: int
    filename: str
    purpose: Purpose
    keep_s: float


async def read_form(request: Request, settings: BatchSettings) -> tuple[FormData, UploadForm]:
    """Return an upload and the form that holds it, which the caller closes. Raises ApiError."""
    essence = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if essence != "multipart/form-data":
        raise ApiError(415, "Send the file as multipart/form-data, with the fields file and purpose.")
    try:
        form = await request.form(max_files=1, max_fields=len(_FIELDS), max_part_size=_MAX_PART_BYTES)
    except (HTTPException, MultiPartException):
        message = "The body is no multipart form with one file, purpose and expires_after."
        raise ApiError(400, message, code="invalid_form") from None
    try:
        return form, _checked(form, settings)
    except (ApiError, FieldError):
        await form.close()
        raise


def _checked(form: FormData, settings: BatchSettings) -> UploadForm:
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
    return UploadForm(file.file, file.size or 0, _printable(filename), "batch", _keep_s(form, settings))


def _keep_s(form: FormData, settings: BatchSettings) -> float:
    anchor, seconds = form.get("expires_after[anchor]"), form.get("expires_after[seconds]")
    if anchor is None and seconds is None:
        return settings.keep_s
    is_number = isinstance(seconds, str) and seconds.isascii() and seconds.isdecimal() and len(seconds) < 10
    given = {"anchor": anchor, "seconds": int(str(seconds)) if is_number else seconds}
    return float(EXPIRY.read("expires_after", given)["seconds"])


def store(files: FileStore, owner: str, form: UploadForm, settings: BatchSettings, now: float) -> StoredFile:
    """Copy an upload to the storage and return it. Raises ApiError (429) for a key that has too many files."""
    if len(files.ids(owner)) >= settings.max_files:
        raise server_busy(f"this key has {settings.max_files} files already; delete some")
    file = StoredFile(
        id=new_id("file"),
        bytes=form.num_bytes,
        created_at=int(now),
        expires_at=int(now + form.keep_s),
        filename=form.filename,
        purpose=form.purpose,
    )
    with files.writing(owner, file.id) as stream:
        shutil.copyfileobj(form.content, stream, 1 << 20)
    files.add(owner, file)
    return file


def _printable(name: str) -> str:
    return "".join(character if character.isprintable() else "_" for character in name)
