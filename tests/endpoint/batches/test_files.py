"""Files: what is uploaded comes back, to the key that it belongs to and to no other."""

import asyncio
from io import BytesIO
from unittest.mock import AsyncMock

import openai
import pytest

from endpoint.batches.batch import BatchSettings
from endpoint.batches.service import BatchService
from endpoint.batches.store import FileStore, StoredFile, new_id
from endpoint.http.errors import ApiError
from endpoint.http.origin import owner_of
from tests.clock import Clock
from tests.endpoint.batches.asking import upload
from tests.endpoint.toy_app import BEARER
from tests.endpoint.web import ask

BOUNDARY = "----boundary"
FORM = {**BEARER, "content-type": f"multipart/form-data; boundary={BOUNDARY}"}
FILE = 'name="file"; filename="in.jsonl"'


def form(**parts: str) -> bytes:
    """Return the body of a form; `file` is a file."""
    texts = []
    for name, value in parts.items():
        what = FILE if name == "file" else f'name="{name}"'
        texts.append(f"--{BOUNDARY}\r\nContent-Disposition: form-data; {what}\r\n\r\n{value}\r\n")
    return "".join([*texts, f"--{BOUNDARY}--\r\n"]).encode()


def test_a_file_comes_back_as_it_was_uploaded_until_it_is_deleted(api):
    data = bytes(range(256)) * 700
    file = api.files.create(
        file=("some name.jsonl", data), purpose="batch", expires_after={"anchor": "created_at", "seconds": 7200}
    )
    assert (file.filename, file.bytes, file.purpose, file.object) == ("some name.jsonl", len(data), "batch", "file")
    assert file.expires_at == file.created_at + 7200
    assert api.files.content(file.id).read() == data
    assert api.files.retrieve(file.id) == file
    assert api.files.delete(file.id).deleted
    for read in (api.files.retrieve, api.files.content, api.files.delete):
        with pytest.raises(openai.NotFoundError):
            read(file.id)


def test_another_key_sees_no_file(api, other_api):
    file = upload(api, ["{}"])
    for read in (other_api.files.retrieve, other_api.files.content, other_api.files.delete):
        with pytest.raises(openai.NotFoundError):
            read(file.id)
    assert file.id not in [each.id for each in other_api.files.list()]
    with pytest.raises(openai.BadRequestError, match="no such file"):
        other_api.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
    assert api.files.retrieve(file.id).id == file.id


def test_files_are_listed_page_by_page_in_both_orders(api):
    ids = [upload(api, [str(number)]).id for number in range(5)]
    newest_first = [file.id for file in api.files.list()]
    assert newest_first[:5] == ids[::-1]
    page = api.files.list(limit=2)
    assert ([file.id for file in page.data], page.has_more) == (newest_first[:2], True)
    assert [file.id for file in api.files.list(limit=2, after=ids[3])][:2] == [ids[2], ids[1]]
    assert [file.id for file in api.files.list(order="asc")] == newest_first[::-1]
    assert not api.files.list(purpose="batch_output", after=ids[0]).data or all(
        file.purpose == "batch_output" for file in api.files.list(purpose="batch_output")
    )


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (form(purpose="batch"), 400, "file"),
        (form(file="{}"), 400, "purpose"),
        (form(file="{}", purpose="fine-tune"), 400, "purpose"),
        (form(file="{}", purpose="batch", color="red"), 400, "color"),
        (form(file="{}", purpose="batch", **{"expires_after[seconds]": "7200"}), 400, "expires_after.anchor"),
        (
            form(file="{}", purpose="batch", **{"expires_after[anchor]": "created_at", "expires_after[seconds]": "9"}),
            400,
            "expires_after.seconds",
        ),
        (form(file="{}", purpose="b" * 9000), 400, None),
        (b"no form at all", 400, None),
        (form(file="{}", purpose="batch")[:-40], 400, None),
        (form(purpose="batch").replace(b'name="purpose"', b'name="file"'), 400, None),
        (form(file="x" * 200_001, purpose="batch"), 413, "file"),
        (form(file="x" * 400_000, purpose="batch"), 413, "file"),
        (b"", 400, None),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_wrong_form_is_refused(batch_server, body, status, param):
    answer = ask(batch_server.port, "/v1/files", body, method="POST", headers=FORM)
    assert answer.status == status, answer.body
    if param is not None:
        assert answer.error["param"] == param


def test_an_upload_that_is_no_form_is_refused(batch_server):
    assert ask(batch_server.port, "/v1/files", {"purpose": "batch"}, headers=BEARER).status == 415


def test_a_large_upload_without_a_key_is_refused_unread(batch_server):
    headers = {"content-type": FORM["content-type"]}
    assert ask(batch_server.port, "/v1/files", form(file="{}", purpose="batch"), headers=headers).status == 401


@pytest.mark.parametrize("file_id", ["..", "file-", "file-..%2f..%2fetc", "file-" + "g" * 24, "batch_" + "0" * 24, "a"])
def test_an_id_that_is_none_is_not_found(batch_server, file_id):
    for path in (f"/v1/files/{file_id}", f"/v1/files/{file_id}/content", f"/v1/batches/{file_id}"):
        assert ask(batch_server.port, path, headers=BEARER).status in (404, 405)


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=10001", "limit=x", "after=../..", "order=up", "after=batch_" + "0" * 24]
)
def test_a_wrong_query_is_a_400(batch_server, query):
    assert ask(batch_server.port, f"/v1/files?{query}", headers=BEARER).status == 400


def test_a_key_that_has_too_many_files_is_told_so(tmp_path):
    service = BatchService(BatchSettings(path=str(tmp_path), max_files=2), ["m"], AsyncMock())

    def add(owner: str) -> StoredFile:
        file = StoredFile(id=new_id("file"), bytes=2, created_at=0, expires_at=60, filename="in.jsonl", purpose="batch")
        return asyncio.run(service.add_file(owner, BytesIO(b"{}"), file))

    for _ in range(2):
        add("me")
    with pytest.raises(ApiError, match="2 files") as refusal:
        add("me")
    assert refusal.value.status == 429
    assert add("another").bytes == 2


def test_without_a_folder_the_routes_say_how_they_are_switched_on(server):
    for path, body in (("/v1/files", None), ("/v1/batches", None), ("/v1/files", form(file="{}", purpose="batch"))):
        answer = ask(server.port, path, body, headers=FORM if body else {})
        assert answer.status == 404
        assert "serve.batches_path" in answer.error["message"]


def test_expired_files_are_gone_at_once_and_deleted_later_unless_they_are_in_use(tmp_path):
    clock = Clock()
    files, ids = FileStore(str(tmp_path), clock), [new_id("file") for _ in range(3)]
    clock.now = created = 2e9
    for number, file_id in enumerate(ids):
        with files.writing("me", file_id) as stream:
            stream.write(b"x")
        if number < 2:
            file = StoredFile(
                id=file_id,
                bytes=1,
                created_at=int(created),
                expires_at=int(created) + 10,
                filename="f",
                purpose="batch",
            )
            files.add("me", file)
    clock.now += 9
    assert files.get("me", ids[0])
    clock.now += 1
    assert files.get("me", ids[0]) is None
    assert files.delete_expired("me", unfinished_s=60.0, in_use={ids[0]}) == [ids[2], ids[1]], "an upload died, too"
    assert files.ids("me") == [ids[0]]
    assert not (tmp_path / "me" / "files" / ids[1]).exists()


def test_two_keys_have_two_folders_and_no_folder_shows_its_key():
    assert owner_of(b"one") != owner_of(b"two") != owner_of(None)
    assert "one" not in owner_of(b"one")
