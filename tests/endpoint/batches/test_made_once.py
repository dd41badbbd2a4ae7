"""A batch that is asked for again, because the process that made it was lost before it could say so, is made once."""

import io
import time

import pytest

from endpoint.batches.batch import BatchSettings
from endpoint.batches.service import BatchRequest, BatchService
from endpoint.batches.store import StoredFile, is_id, made_at, new_id
from endpoint.http.origin import Origin
from tests.endpoint.batches.asking import COMPLETIONS, content, line

pytestmark = pytest.mark.anyio


async def test_a_request_makes_one_batch_however_many_processes_are_asked(tmp_path):
    num_woken = 0

    async def wake() -> None:
        nonlocal num_woken
        num_woken += 1

    def process() -> BatchService:
        return BatchService(BatchSettings(path=str(tmp_path), max_in_progress=2), ["m"], wake)

    lines = content([line()])
    kept = {"id": new_id("file"), "created_at": 0, "expires_at": int(time.time()) + 3600, "filename": "in.jsonl"}
    upload = StoredFile(**kept, bytes=len(lines), purpose="batch")
    file = await process().add_file("me", io.BytesIO(lines), upload)
    asked = {"input_file_id": file.id, "endpoint": COMPLETIONS, "completion_window": "24h"}
    request, origin = BatchRequest(**asked), Origin()
    made = [await process().create("me", request, each) for each in (origin, origin, Origin(), origin)]
    ids = [batch.id for batch in made]
    assert ids[0] == ids[1] == ids[3] != ids[2]
    assert len((await process().list_batches("me", None, 10))["data"]) == 2
    assert num_woken == 4, "the driver may not have heard of it"
    assert is_id("batch", ids[0])
    assert made_at(ids[0]) == pytest.approx(origin.created_ns / 1e9)
