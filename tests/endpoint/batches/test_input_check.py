"""What makes a whole batch fail is told with its line and its field; what is wrong with one row is not looked at."""

from pathlib import Path
from typing import Any

import pytest

from endpoint.batches.batch import MAX_ERRORS, CheckedInput, InputRules
from pipeline.storage.location import Location
from tests.endpoint.batches.asking import CHAT, COMPLETIONS, content, line
from tests.endpoint.in_process import MODEL

MODELS = {None: MODEL, MODEL: MODEL, "tiny": MODEL, "pirate": "pirate"}
RULES = InputRules(endpoint=COMPLETIONS, models=MODELS, max_rows=4, max_line_bytes=500)


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in line(1).items() if key != name}


def check(folder: Path, lines: list[Any]) -> tuple[int, Any]:
    path = folder / "content"
    path.write_bytes(content(lines))
    found = CheckedInput(RULES).check(Location.parse(str(path)))
    return found.num_rows, found.errors


def test_good_requests_are_counted(tmp_path):
    lines = [line(0), line(1, model=None), b"\r", line(2, model="tiny"), {**line(3), "body": {"temperature": "hot"}}]
    assert check(tmp_path, lines) == (4, ())


@pytest.mark.parametrize(
    ("bad", "code", "param"),
    [
        ("{not json", "invalid_json_line", None),
        (b"\xff\xfe", "invalid_json_line", None),
        ("[1, 2]", "invalid_json_line", None),
        ('"text"', "invalid_json_line", None),
        ("null", "invalid_json_line", None),
        ("[" * 400, "invalid_json_line", None),
        ('{"custom_id": "\\ud800", "url": "u", "body": {}}', "invalid_json_line", None),
        ('{"custom_id": ' + "9" * 450 + "}", "missing_required_parameter", "url"),
        (without("custom_id"), "missing_required_parameter", "custom_id"),
        (without("url"), "missing_required_parameter", "url"),
        (without("body"), "missing_required_parameter", "body"),
        ({**line(1), "color": "red"}, "unknown_parameter", "color"),
        ({**line(1), "custom_id": ""}, "invalid_custom_id", "custom_id"),
        ({**line(1), "custom_id": 7}, "invalid_custom_id", "custom_id"),
        ({**line(1), "custom_id": None}, "invalid_custom_id", "custom_id"),
        (line(0), "duplicate_custom_id", "custom_id"),
        ({**line(1), "method": "GET"}, "invalid_method", "method"),
        (line(1, url=CHAT), "mismatched_url", "url"),
        ({**line(1), "url": "/v1/embeddings"}, "mismatched_url", "url"),
        ({**line(1), "url": ["/v1/completions"]}, "mismatched_url", "url"),
        ({**line(1), "body": "text"}, "invalid_type", "body"),
        ({**line(1), "body": None}, "invalid_type", "body"),
        (line(1, model="gpt-none"), "model_not_found", "body.model"),
        (line(1, model=["m"]), "model_not_found", "body.model"),
        (line(1, model="pirate"), "mismatched_model", "body.model"),
        (line(1, prompt="x" * 500), "request_too_large", None),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_line_that_is_no_request_of_the_batch_is_named(tmp_path, bad, code, param):
    _, (error,) = check(tmp_path, [line(0), bad, line(2)])
    assert (error.code, error.line, error.param) == (code, 2, param)


def test_an_empty_file_and_one_with_too_many_requests_fail(tmp_path):
    for lines in ([], [b"", b"  "]):
        assert [error.code for error in check(tmp_path, lines)[1]] == ["empty_file"]
    assert [error.code for error in check(tmp_path, [line(i) for i in range(5)])[1]] == ["too_many_requests"]


def test_only_the_first_errors_are_listed(tmp_path):
    path = tmp_path / "content"
    path.write_bytes(b"{\n" * 5000)
    rules = InputRules(endpoint=COMPLETIONS, models={}, max_rows=9000, max_line_bytes=500)
    assert len(CheckedInput(rules).check(Location.parse(str(path))).errors) == MAX_ERRORS
