"""Body of POST /v1/batches (https://platform.openai.com/docs/api-reference/batch/create)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipeline.inputs.openai_batch import KINDS
from pipeline.requests.asked import LABELS
from pipeline.requests.body import Body, asks
from pipeline.requests.kinds import integer, one_of, options, text

EXPIRY = options("anchor", "seconds", anchor=one_of("created_at"), seconds=integer(ge=3600, le=30 * 86_400))


@dataclass(frozen=True, kw_only=True)
class BatchRequest(Body):
    """A batch that is to be made of an uploaded file."""

    input_file_id: str = asks(text(64), "The file, which holds a request in each line.", is_required=True)
    endpoint: str = asks(one_of(*KINDS), "The path of all requests of the file.", is_required=True)
    completion_window: str = asks(one_of("24h"), "How long the batch may take.", is_required=True)
    metadata: dict[str, str] | None = asks(LABELS, "Kept with the batch, and shown with it.")
    output_expires_after: dict[str, Any] | None = asks(EXPIRY, "How long the results are kept.")
