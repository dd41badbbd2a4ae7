"""Batches by the official client: the texts of the offline job, a line for every row, and nothing of another key."""

from typing import Any

import openai
import pytest

from tests.endpoint.batches.asking import CHAT, COMPLETIONS, begin, ended, line, results, texts, upload
from tests.endpoint.in_process import MODEL
from tests.endpoint.toy_app import BEARER
from tests.endpoint.web import ask

BAD_BODIES: dict[str, dict[str, Any]] = {  # requests/test_bodies.py has all
    "temperature": {"temperature": 9999},
    "prompts": {"prompt": ["one", "two"]},
    "long prompt": {"prompt": "hello " * 400},
    "grammar": {"guided_regex": "("},
}


def test_texts_are_those_of_the_offline_job_and_of_the_endpoint(batch_server, api):
    lines = [line(number, temperature=number % 2, n=1 + number % 3) for number in range(9)]
    batch = ended(api, begin(api, lines, metadata={"kind": "test"}))
    assert (batch.status, batch.metadata, batch.model) == ("completed", {"kind": "test"}, MODEL)
    assert batch.request_counts is not None
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (9, 9, 0)
    assert batch.error_file_id is None
    found = results(api, batch.output_file_id)
    assert list(found) == [each["custom_id"] for each in lines], "the lines are in the order of the input"
    bodies = [{k: v for k, v in each["body"].items() if k != "model"} for each in lines]
    offline = batch_server.texts_of(bodies)
    assert [[choice["text"] for choice in each["response"]["body"]["choices"]] for each in found.values()] == offline
    online = [[choice.text for choice in api.completions.create(**each["body"]).choices] for each in lines]
    assert online == offline
    assert batch.usage is not None
    usages = [each["response"]["body"]["usage"] for each in found.values()]
    assert batch.usage.output_tokens == sum(usage["completion_tokens"] for usage in usages)
    assert batch.usage.input_tokens == sum(usage["prompt_tokens"] for usage in usages)


def test_chats_without_a_limit_may_fill_the_context_as_at_the_endpoint(api):
    asked = line(3, url=CHAT, max_tokens=None, temperature=0)
    batch = ended(api, begin(api, [asked], CHAT))
    online = api.chat.completions.create(**{k: v for k, v in asked["body"].items() if v is not None})
    assert texts(results(api, batch.output_file_id)) == {"row-3": online.choices[0].message.content}


def test_a_row_that_is_wrong_has_an_error_line_and_its_neighbours_are_done(api):
    bad = [{**line(number, **body), "custom_id": name} for number, (name, body) in enumerate(BAD_BODIES.items())]
    good = [line(100 + number) for number in range(3)]
    batch = ended(api, begin(api, [good[0], *bad[:2], good[1], *bad[2:], good[2]]))
    assert batch.status == "completed"
    assert batch.request_counts is not None
    assert (batch.request_counts.completed, batch.request_counts.failed) == (3, len(bad))
    errors = results(api, batch.error_file_id)
    assert errors.keys() == BAD_BODIES.keys()
    for name, each in errors.items():
        assert each["error"] is None
        assert each["response"]["status_code"] == 400, (name, each)
        assert each["response"]["body"]["error"]["type"] == "invalid_request_error"
        assert each["response"]["body"]["error"]["message"]
    assert errors["temperature"]["response"]["body"]["error"]["param"] == "temperature"
    assert results(api, batch.output_file_id).keys() == {each["custom_id"] for each in good}


def test_a_file_with_a_line_that_is_no_request_fails_with_its_line(api):
    batch = ended(api, begin(api, [line(0), "{", line(0)]))
    assert (batch.status, batch.output_file_id, batch.error_file_id) == ("failed", None, None)
    assert batch.errors is not None
    assert batch.errors.data is not None
    assert [(error.code, error.line) for error in batch.errors.data] == [
        ("invalid_json_line", 2),
        ("duplicate_custom_id", 3),
    ]
    empty = ended(api, begin(api, []))
    assert empty.status == "failed"


def test_another_key_sees_no_batch(api, other_api):
    batch = ended(api, begin(api, [line(0)]))
    for method in (other_api.batches.retrieve, other_api.batches.cancel):
        with pytest.raises(openai.NotFoundError):
            method(batch.id)
    assert batch.output_file_id is not None
    with pytest.raises(openai.NotFoundError):
        other_api.files.content(batch.output_file_id)
    assert list(other_api.batches.list()) == []


def test_batches_are_listed_page_by_page_the_newest_first(api):
    batches = [ended(api, begin(api, [line(0)])) for _ in range(3)]
    ids = [batch.id for batch in reversed(batches)]
    assert [batch.id for batch in api.batches.list(limit=2).data] == ids[:2]
    assert [batch.id for batch in api.batches.list(limit=1)][:3] == ids, "the client turns the pages"
    assert next(iter(api.batches.list(after=ids[0]))).id == ids[1]


def test_a_batch_that_has_ended_cannot_be_cancelled_and_its_input_can_be_deleted(api):
    batch = ended(api, begin(api, [line(0)]))
    with pytest.raises(openai.BadRequestError, match="completed"):
        api.batches.cancel(batch.id)
    assert api.files.delete(batch.input_file_id).deleted


def test_a_cancelled_batch_keeps_what_it_has_and_says_so_of_every_other_row(batch_server, api):
    lines = [line(number, max_tokens=80, ignore_eos=True) for number in range(40)]
    batch = begin(api, lines)
    with pytest.raises(openai.BadRequestError, match=batch.id):
        api.files.delete(batch.input_file_id)
    assert api.batches.cancel(batch.id).status in ("cancelling", "cancelled")
    assert api.batches.cancel(batch.id).status in ("cancelling", "cancelled"), "it may be asked twice"
    batch = ended(api, batch)
    assert batch.status == "cancelled"
    done, not_run = results(api, batch.output_file_id), results(api, batch.error_file_id)
    assert len(done) + len(not_run) == len(lines)
    assert not_run
    assert {each["error"]["code"] for each in not_run.values()} == {"batch_cancelled"}
    assert batch.request_counts is not None
    assert (batch.request_counts.total, batch.request_counts.completed) == (40, len(done))


def test_a_key_may_have_only_so_many_unfinished_batches(api):
    lines = [line(number, max_tokens=80, ignore_eos=True) for number in range(40)]
    batches = [begin(api, lines) for _ in range(3)]
    with pytest.raises(openai.RateLimitError, match="3 unfinished batches"):
        begin(api, lines)
    for batch in batches:
        api.batches.cancel(batch.id)
    assert {ended(api, batch).status for batch in batches} <= {"cancelled", "completed"}


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"endpoint": "/v1/embeddings"}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"input_file_id": "file-none"}, "input_file_id"),
        ({"input_file_id": None}, "input_file_id"),
        ({"metadata": {"k": 7}}, "metadata.k"),
        ({"metadata": {"k" * 65: "v"}}, None),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after.seconds"),
        ({"priority": "high"}, "priority"),
    ],
    ids=str,
)
def test_a_wrong_field_of_a_batch_is_named(batch_server, api, changes, param):
    file = upload(api, [line(0)])
    body = {"input_file_id": file.id, "endpoint": COMPLETIONS, "completion_window": "24h", **changes}
    answer = ask(batch_server.port, "/v1/batches", body, headers=BEARER)
    assert answer.status == 400
    if param is not None:
        assert answer.error["param"] == param


def test_a_result_cannot_be_the_input_of_a_batch(api):
    batch = ended(api, begin(api, [line(0)]))
    assert batch.output_file_id is not None
    with pytest.raises(openai.BadRequestError, match="result"):
        api.batches.create(input_file_id=batch.output_file_id, endpoint=COMPLETIONS, completion_window="24h")
