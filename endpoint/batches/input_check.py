"""The check of a batch's input file, before any of its rows is run: what makes the whole batch fail.

A line must be a request of the batch's endpoint for a model that is served, with an id of its own. All lines of a file
are for one model, as in OpenAI's API; a line that names none is for the endpoint's own. What its `body` asks
for is checked with the row: a row that is wrong there has a line in the error file, and its neighbours are done.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from endpoint.batches.batch import BatchError
from pipeline.errors import FieldError, shown_name
from pipeline.inputs.files import split_lines
from pipeline.requests.strict_json import JsonError, parse_object
from pipeline.requests.texts import body_of, custom_id
from pipeline.storage.location import Location

MAX_ERRORS = 100  # that are listed
_FIELDS = frozenset({"custom_id", "method", "url", "body"})
_CODES = {"custom_id": "invalid_custom_id", "method": "invalid_method", "body": "invalid_type"}


@dataclass(frozen=True, kw_only=True)
class InputRules:
    """What an input file must be."""

    endpoint: str
    models: Mapping[str | None, str]  # names that are served, to the own names of their models; None if a line has none
    max_rows: int
    max_line_bytes: int


@dataclass(frozen=True, kw_only=True)
class CheckedInput:
    """What was found in an input file: the first `MAX_ERRORS` errors, and which model its requests are for."""

    num_rows: int = 0
    model: str | None = None  # by its own name; None if no line has told
    errors: tuple[BatchError, ...] = ()


def check_input(location: Location, rules: InputRules) -> CheckedInput:
    """Return what is in a file."""
    checker = _Checker(rules)
    errors = tuple(islice(checker.errors(location), MAX_ERRORS))
    return CheckedInput(num_rows=checker.num_rows, model=checker.model, errors=errors)


class _Checker:
    def __init__(self, rules: InputRules) -> None:
        self._rules, self.num_rows = rules, 0
        self.model: str | None = None  # of the lines so far
        self._line_of: dict[str, int] = {}  # custom_id -> line

    def errors(self, location: Location) -> Iterator[BatchError]:
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
