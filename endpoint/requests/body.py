"""Bodies of HTTP requests: how one is read, what the OpenAPI document says of it, and what the engine is asked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from fastapi import Request

from decoding.sampling_params import SamplingParams
from endpoint.http.errors import ApiError
from endpoint.requests.refusal import refusal
from endpoint.requests.response_chat import chat_of_response
from pipeline.requests.asked import Asked
from pipeline.requests.body import Body, read
from pipeline.requests.chat import ChatAsked
from pipeline.requests.completion import CompletionAsked
from pipeline.requests.response import ResponseAsked
from pipeline.text.chat import Chat

_Body = TypeVar("_Body", bound=Body)


async def body_of(kind: type[_Body], request: Request) -> _Body:
    """Return what the body of a request asks for. Raises ApiError, and FieldError for the first wrong field."""
    data = await request.body()
    if not data:
        raise ApiError(400, "the body: is required", code="missing_required_parameter")
    return read(kind, json.loads(data))


def documented(kind: type[Body]) -> dict[str, Any]:
    """Return what the OpenAPI document says of a route that takes such bodies."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": kind.schema()}}}}


def prompts_of(asked: Asked) -> Mapping[str, str | list[Any] | Chat]:
    """Return each prompt by the path of its field in the body: a text, token ids or a chat. Raises FieldError."""
    match asked:
        case CompletionAsked():
            return asked.prompts
        case ChatAsked():
            return {"messages": Chat.of(asked.messages, asked.of_chat())}
        case ResponseAsked():
            return {"input": chat_of_response(asked)}
    raise AssertionError(f"{type(asked).__name__} has no prompts")


def params_of(asked: Asked) -> SamplingParams:
    """Return what each sample is drawn with. Raises FieldError, and ApiError for fields that contradict each other.

    Whether a grammar can be compiled is known where the engine is.
    """
    given = {"max_tokens": asked.default_max_tokens, **asked.sampling(), "n": asked.num_samples, "seed": None}
    if asked.num_samples > asked.num_choices:
        given["logprobs"] = given.get("logprobs") or 0  # which choices are best is decided by them
    given["structured"] = given.get("structured") or None
    try:
        return SamplingParams(**given)
    except ValueError as error:
        raise refusal(str(error), asked.form_field) from error
