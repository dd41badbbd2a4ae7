"""Body of POST /v1/batches (https://platform.openai.com/docs/api-reference/batch/create)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

MIN_KEEP_S, MAX_KEEP_S = 3600, 30 * 86_400


class Strict(BaseModel):
    """An object of a body, which may hold no other fields and nothing that would have to be converted."""

    model_config = ConfigDict(extra="forbid", strict=True)


class ExpiresAfter(Strict):
    """How long a file is kept."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=MIN_KEEP_S, le=MAX_KEEP_S)]


class BatchRequest(Strict):
    """A batch that is to be made of an uploaded file."""

    input_file_id: Annotated[str, Field(max_length=64)]
    endpoint: Literal["/v1/chat/completions", "/v1/completions"]
    completion_window: Literal["24h"]
    metadata: (
        Annotated[
            dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=16)
        ]
        | None
    ) = None
    output_expires_after: ExpiresAfter | None = None
