"""Input files of batches, and batches by the official client."""

import json
from typing import Any

import openai
from openai.types import Batch, FileObject

from tests.endpoint.in_process import MODEL
from tests.jobs.runs import wait_until

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
ENDED = ("completed", "failed", "expired", "cancelled")


def line(number: int = 0, url: str = COMPLETIONS, **body: Any) -> dict[str, Any]:
    """Return a good request with its own id."""
    asked = {"prompt": f"hello {number}"} if url == COMPLETIONS else {"messages": [{"role": "user", "content": "hi"}]}
    body = {"model": MODEL, "max_tokens": 6, "seed": number, **asked, **body}
    return {"custom_id": f"row-{number}", "method": "POST", "url": url, "body": body}


def content(lines: list[Any]) -> bytes:
    """Return a file with these lines, texts and bytes as they are."""
    return b"".join(
        (each if isinstance(each, bytes) else each.encode() if isinstance(each, str) else json.dumps(each).encode())
        + b"\n"
        for each in lines
    )


def upload(api: openai.OpenAI, lines: list[Any]) -> FileObject:
    """Upload a file with these lines."""
    return api.files.create(file=("in.jsonl", content(lines)), purpose="batch")


def begin(api: openai.OpenAI, lines: list[Any], url: Any = COMPLETIONS, **options: Any) -> Batch:
    """Make a batch of these lines."""
    file = upload(api, lines)
    return api.batches.create(input_file_id=file.id, endpoint=url, completion_window="24h", **options)


def ended(api: openai.OpenAI, batch: Batch) -> Batch:
    """Return the batch when it has ended."""
    wait_until(lambda: api.batches.retrieve(batch.id).status in ENDED, every_s=0.05)
    return api.batches.retrieve(batch.id)


def results(api: openai.OpenAI, file_id: str | None) -> dict[str, dict[str, Any]]:
    """Return the lines of a result by custom_id; nothing for a file that there is not."""
    if file_id is None:
        return {}
    found = [json.loads(each) for each in api.files.content(file_id).text.splitlines()]
    assert len({each["custom_id"] for each in found}) == len(found), "a row has two lines"
    return {each["custom_id"]: each for each in found}


def texts(lines: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Return the first text of each answer."""
    choices = {name: each["response"]["body"]["choices"][0] for name, each in lines.items()}
    return {name: each["text"] if "text" in each else each["message"]["content"] for name, each in choices.items()}
