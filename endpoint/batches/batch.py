"""Batch: the state of a batch, as batch.json keeps it and as the API shows it, and the check of its input file.

    validating -> in_progress -> finalizing -> completed
         |             |-> cancelling -> cancelled        asked by the client (also while validating)
         |             '-> expired                        its time is over
         '-> failed                                       the file is wrong, or the batch cannot go on

https://platform.openai.com/docs/api-reference/batch/object

The check tells, before any row is run, what makes the whole batch fail. A line must be a request of the batch's
endpoint for a model that is served, with an id of its own. All lines of a file are for one model, as in OpenAI's API; a
line that names none is for the endpoint's own. What its `body` asks for is checked with the row: a row that is wrong
there has a line in the error file, and its neighbours are done.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import Any, Literal

from pipeline.counts import Counts
from pipeline.errors import FieldError, shown_name
from pipeline.inputs.files import split_lines
from pipeline.limits import check_numbers
from pipeline.requests.strict_json import JsonError, parse_object
from pipeline.requests.texts import body_of, custom_id
from pipeline.run.commit import Receipt
from pipeline.storage.location import Location

WINDOW_S = 24 * 3600
Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]
ENDED: frozenset[Status] = frozenset({"failed", "completed", "expired", "cancelled"})
CANCELLABLE: frozenset[Status] = frozenset({"validating", "in_progress", "cancelling"})
MAX_ERRORS = 100  # that are listed
_FIELDS = frozenset({"custom_id", "method", "url", "body"})
_CODES = {"custom_id": "invalid_custom_id", "method": "invalid_method", "body": "invalid_type"}


@dataclass(frozen=True, kw_only=True)
class BatchSettings:
    """The Batch API: `path` switches it on."""

    path: str | None = None
    """Folder or URI for the Batch API (/v1/files, /v1/batches), which every node sees; without it there is none."""
    max_file_bytes: int = 200 * 2**20
    """Largest file that may be uploaded; then 413."""
    max_rows: int = 50_000
    """Requests that a batch may have."""
    max_in_progress: int = 16
    """Batches of one key that may be unfinished at once; then 429."""
    max_files: int = 1000
    """Files that one key may have, results among them; no upload beyond them (429)."""
    keep_s: float = 30 * 86_400.0
    """Seconds that files and results are kept unless a client says otherwise (expires_after)."""
    rows_per_unit: int = 32
    """Requests in a work unit: what a crash, a cancellation or the end of a batch's time can cost at most."""
    reserved_slots: int | None = None
    """Slots of each engine that rows of batches leave to other requests; a quarter unless given."""

    def __post_init__(self) -> None:
        counts = ("max_file_bytes", "max_rows", "max_in_progress", "max_files", "rows_per_unit")
        check_numbers(self, "serve.batches_", at_least_1=counts, not_negative=("reserved_slots",))
        check_numbers(self, "serve.batches_", finite_seconds=("keep_s",))


@dataclass(frozen=True, kw_only=True)
class BatchError:
    """What is wrong with a batch: `line` counts from 1 in its input file, `param` is a field of that line."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A batch. Times are seconds since 1970; `num_completed` and `num_failed` count rows of committed units."""

    id: str
    owner: str
    endpoint: str
    input_file_id: str
    model: str | None  # the name of the model that writes it; None until the file has told which of several that is
    created_at: int
    expires_at: int
    adapter: str | None = None  # the same name if that is an adapter
    metadata: Mapping[str, str] | None = None
    output_keep_s: float | None = None  # `output_expires_after`
    status: Status = "validating"
    changed_at: Mapping[str, int] = field(default_factory=dict)  # when it came into each status after the first
    errors: tuple[BatchError, ...] = ()
    num_rows: int = 0
    num_completed: int = 0
    num_failed: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    output_file_id: str | None = None
    error_file_id: str | None = None

    def become(self, status: Status, now: float, **values: Any) -> Batch:
        """Return the batch in another status, into which it comes at this time."""
        return replace(self, status=status, changed_at={**self.changed_at, status: int(now)}, **values)

    def with_counts(self, receipts: Iterable[Receipt]) -> Batch:
        """Return the batch with the counts of all its committed units."""
        counts = sum((receipt.counts for receipt in receipts), Counts())
        return replace(
            self,
            num_completed=counts.num_rows - counts.num_errors,
            num_failed=counts.num_errors,
            num_prompt_tokens=counts.num_prompt_tokens,
            num_cached_tokens=counts.num_cached_tokens,
            num_output_tokens=counts.num_output_tokens,
        )

    def to_bytes(self) -> bytes:
        """Return the content of batch.json."""
        return json.dumps(asdict(self), ensure_ascii=False, indent=1).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> Batch:
        """Read what `to_bytes` wrote."""
        values = json.loads(content)
        return cls(**{**values, "errors": tuple(BatchError(**error) for error in values["errors"])})

    def shown(self) -> dict[str, Any]:
        """Return the batch as the API shows it."""
        at = self.changed_at
        cached, prompt, output = self.num_cached_tokens, self.num_prompt_tokens, self.num_output_tokens
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "model": self.model,
            "errors": {"object": "list", "data": [asdict(error) for error in self.errors]} if self.errors else None,
            "input_file_id": self.input_file_id,
            "completion_window": "24h",
            "status": self.status,
            "output_file_id": self.output_file_id,
            "error_file_id": self.error_file_id,
            "created_at": self.created_at,
            "in_progress_at": at.get("in_progress"),
            "expires_at": self.expires_at,
            "finalizing_at": at.get("finalizing"),
            "completed_at": at.get("completed"),
            "failed_at": at.get("failed"),
            "expired_at": at.get("expired"),
            "cancelling_at": at.get("cancelling"),
            "cancelled_at": at.get("cancelled"),
            "request_counts": {"total": self.num_rows, "completed": self.num_completed, "failed": self.num_failed},
            "usage": {
                "input_tokens": prompt,
                "input_tokens_details": {"cached_tokens": cached},
                "output_tokens": output,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": prompt + output,
            },
            "metadata": self.metadata,
        }


@dataclass(frozen=True)
class InputRules:
    """What an input file must be."""

    endpoint: str
    models: Mapping[str | None, str]  # names that are served, to the own names of their models; None if a line has none
    max_rows: int
    max_line_bytes: int


class CheckedInput:
    """What was found in an input file: the first `MAX_ERRORS` errors, and which model its requests are for."""

    def __init__(self, rules: InputRules, errors: tuple[BatchError, ...] = ()) -> None:
        self._rules, self.num_rows, self.errors = rules, 0, errors
        self.model: str | None = None  # by its own name; None while no line has told
        self._line_of: dict[str, int] = {}  # custom_id -> line

    def check(self, location: Location) -> CheckedInput:
        """Return what is in a file."""
        self.errors = tuple(islice(self._errors(location), MAX_ERRORS))
        return self

    def _errors(self, location: Location) -> Iterator[BatchError]:
        line_number = 0
        for record in split_lines(location):
            self.num_rows += 1
            line_number = self.num_rows
            if self.num_rows > self._rules.max_rows:
                message = f"The file has more than {self._rules.max_rows} requests, the most that a batch may have."
                yield BatchError(code="too_many_requests", message=message)
                return
            error = self._problem(record.data, line_number)
            if error is not None:
                yield error
        if not line_number:
            yield BatchError(code="empty_file", message="The file has no requests.")

    def _problem(self, data: bytes, line: int) -> BatchError | None:
        if len(data) > self._rules.max_line_bytes:
            message = f"The line has {len(data)} bytes; a request may have {self._rules.max_line_bytes}."
            return BatchError(code="request_too_large", message=message, line=line)
        try:
            value = parse_object(data, "This line")
        except JsonError as error:
            return BatchError(code="invalid_json_line", message=str(error), line=line)
        except RecursionError:
            return BatchError(code="invalid_json_line", message="This line is nested too deeply.", line=line)
        return self._wrong_field(value, line)

    def _wrong_field(self, value: dict[str, Any], line: int) -> BatchError | None:
        rules = self._rules

        def wrong(code: str, param: str, message: str) -> BatchError:
            return BatchError(code=code, message=message, line=line, param=param)

        for name in ("custom_id", "url", "body"):
            if name not in value:
                return wrong("missing_required_parameter", name, f"Missing required parameter: '{name}'.")
        if unknown := sorted(value.keys() - _FIELDS):
            return wrong("unknown_parameter", shown_name(unknown[0]), "There is no such field in a request of a batch.")
        try:
            first = self._line_of.setdefault(custom_id(value), line)
            if first != line:
                return wrong("duplicate_custom_id", "custom_id", f"The custom_id of line {first} occurs again.")
            body = body_of(value)
        except FieldError as error:
            return wrong(_CODES[error.where], error.where, f"{error.reason[:1].upper()}{error.reason[1:]}.")
        if value["url"] != rules.endpoint:
            return wrong("mismatched_url", "url", f"Expected '{rules.endpoint}', the endpoint of this batch.")
        named = body.get("model")
        model = rules.models.get(named) if named is None or isinstance(named, str) else None
        if model is None:
            shown = shown_name(str(named), 128)
            return wrong("model_not_found", "body.model", f"The model '{shown}' does not exist.")
        self.model = self.model or model
        if model != self.model:
            names = f"this request is for '{shown_name(model, 128)}', and those before it are for"
            message = f"A batch is for one model: {names} '{shown_name(self.model, 128)}'. Make a batch for each model."
            return wrong("mismatched_model", "body.model", message)
        return None
