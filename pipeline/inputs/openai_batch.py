"""OpenAI batch input: one request a line, read as the endpoint reads it, as a prompt or messages and what is asked.

Format: https://platform.openai.com/docs/api-reference/batch/request-input
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.errors import FieldError
from pipeline.requests.asked import Asked
from pipeline.requests.body import read
from pipeline.requests.chat import ChatAsked
from pipeline.requests.completion import CompletionAsked
from pipeline.requests.kinds import LARGEST
from pipeline.requests.token_kinds import check_token_ids

KINDS: Mapping[str, type[Asked]] = {"/v1/chat/completions": ChatAsked, "/v1/completions": CompletionAsked}
_MAX_ID = 512  # characters


def custom_id(line: Mapping[str, Any]) -> str:
    """Return the id of a line. Raises FieldError if it has none."""
    value = line.get("custom_id")
    if not isinstance(value, str) or not 1 <= len(value) <= _MAX_ID:
        raise FieldError("custom_id", f"expected a string of 1 to {_MAX_ID} characters", stage="read")
    return value


def body_of(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of the request on a line. Raises FieldError for a method or a body that is none."""
    if line.get("method", "POST") != "POST":
        raise FieldError("method", "expected 'POST'", stage="read")
    body = line.get("body")
    if not isinstance(body, dict):
        raise FieldError("body", "expected an object", stage="read")
    return body


def read_request(
    line: Mapping[str, Any],
) -> tuple[str | list[int] | None, list[Any] | None, dict[str, Any], dict[str, Any]]:
    """Return (prompt, messages, overrides, what else is asked) of the request on a line; one of the first two is None.

    Overrides have the names of SamplingParams, and the rest those of the API. Raises FieldError for the first field
    that is wrong, with the reason that the endpoint gives.
    """
    body, url = body_of(line), line.get("url")
    kind = KINDS.get(url) if isinstance(url, str) else None
    if kind is None:
        raise FieldError("url", f"expected one of {', '.join(KINDS)}", stage="read")
    try:
        asked = read(kind, body)
        asked.check_for_batch()
        sampling = asked.sampling()
        if isinstance(asked, CompletionAsked):
            ((where, prompt),) = asked.prompts.items()
            if isinstance(prompt, list):
                check_token_ids(where, prompt, LARGEST + 1)
            return prompt, None, sampling, asked.of_row()
    except FieldError as error:
        raise error.inside("body.") from error
    assert isinstance(asked, ChatAsked)
    return None, asked.messages, sampling, {**asked.of_row(), **asked.of_chat()}
