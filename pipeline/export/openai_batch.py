"""OpenAI batch output: one JSON line for every input row, generated or failed, in input order.

`export_batch` writes one file, as `dray export` does. `export_results` writes two, as the Batch API does: results, and
errors with the answer that the endpoint would have given.

Format: https://platform.openai.com/docs/api-reference/batch/request-output
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import IO, Any

from pipeline.errors import ErrorRow, Stage
from pipeline.id_set import IdSet
from pipeline.inputs.options import InputOptions
from pipeline.inputs.rows import read_unit
from pipeline.inputs.units import WorkUnit
from pipeline.run.directory import RunDirectory
from pipeline.run.reading import read_ahead
from pipeline.run.unit_rows import UnitRows, each_unit, read_unit_rows, refuse_incomplete
from pipeline.storage.location import Location
from pipeline.storage.whole_file import replacement
from pipeline.text.answer_parts import shown_call
from pipeline.text.codec import TextCodec

_FIELD = re.compile(r"(?:body|sampling)\.([A-Za-z_][^\s:]*)|([a-z_]+(?:[.\[][\w.\[\]]*)?): ")  # begins a message
_ERROR_CODES: Mapping[Stage, str] = {
    "read": "invalid_request",
    "template": "invalid_messages",
    "encode": "invalid_prompt",
    "params": "invalid_parameter",
    "generate": "generation_failed",
    "program": "program_failed",
    "validate": "validation_failed",
}


def export_batch(run_directory: RunDirectory, path: str, model: str, codec: TextCodec) -> int:
    """Write one line for each input row of a complete run to `path`; return the number of lines.

    The file appears whole or not at all, and a repeated export gives the same file: the time `created` is always 0.
    Raises IncompleteRunError, before anything is written, if a unit is not committed, and OSError.
    """
    refuse_incomplete(run_directory)
    num_lines = 0
    with replacement(Location.parse(path)) as stream:
        for rows in each_unit(run_directory, run_directory.units()):
            for line in _unit_lines(rows, model, codec):
                stream.write(json.dumps(line, ensure_ascii=False).encode("utf-8") + b"\n")
                num_lines += 1
    return num_lines


@dataclass(frozen=True)
class NotRun:
    """Why rows of uncommitted units have no result: the code and the message of their lines."""

    code: str
    message: str


def export_results(
    run_directory: RunDirectory,
    results: IO[bytes],
    errors: IO[bytes],
    model: str,
    codec: TextCodec,
    *,
    committed: IdSet,
    not_run: NotRun | None = None,
) -> tuple[int, int]:
    """Write a line for each row of an OpenAI batch file, to `results` or to `errors`; return how many went to each.

    Only units in `committed` count as such, whatever was committed since; rows of the others get `not_run`. Raises
    ValueError or OSError as reading them does.
    """
    assert not_run is not None or all(unit.unit_id in committed for unit in run_directory.units())

    def read(unit: WorkUnit) -> UnitRows | list[dict[str, Any]]:
        if unit.unit_id in committed:
            return read_unit_rows(run_directory, unit)
        assert not_run is not None
        return [
            _error_line(row.row_id, row.id if isinstance(row, ErrorRow) else row.user_id, not_run.code, not_run.message)
            for row in read_unit(unit, InputOptions(format="openai_batch"), {})
        ]

    num_results = num_errors = 0
    for found in read_ahead(read, run_directory.units()):
        for line in found if isinstance(found, list) else _unit_lines(found, model, codec):
            is_result = line["error"] is None
            if line["error"] is not None and not isinstance(found, list):
                line = _as_answer(line)
            (results if is_result else errors).write(json.dumps(line, ensure_ascii=False).encode("utf-8") + b"\n")
            num_results, num_errors = num_results + is_result, num_errors + (not is_result)
    return num_results, num_errors


def _error_line(row_id: int, custom_id: str | int | None, code: str, message: str) -> dict[str, Any]:
    error = {"code": code, "message": message}
    return {"id": f"batch_req_{row_id:x}", "custom_id": custom_id, "response": None, "error": error}


def _as_answer(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return an error line with the error as the endpoint's answer to the request."""
    code, message = line["error"]["code"], line["error"]["message"]
    field = _FIELD.match(message)
    is_ours = code == _ERROR_CODES["generate"]
    error = {
        "message": message.replace("sampling.", "").replace("body.", ""),
        "type": "server_error" if is_ours else "invalid_request_error",
        "param": (field[1] or field[2]).rstrip(".") if field else None,
        "code": code,
    }
    request_id = line["id"].replace("batch_req_", "req_")
    response = {"status_code": 500 if is_ours else 400, "request_id": request_id, "body": {"error": error}}
    return {**line, "response": response, "error": None}


def _unit_lines(rows: UnitRows, model: str, codec: TextCodec) -> Iterator[dict[str, Any]]:
    lines = {
        row["row_id"]: _error_line(row["row_id"], _custom_id(row), _ERROR_CODES[row["stage"]], row["message"])
        for row in rows.errors.to_pylist()
    }
    for row_id, samples in groupby(rows.generations.to_pylist(), key=lambda row: row["row_id"]):
        lines[row_id] = _response_line(list(samples), model, codec)
    yield from (lines[row_id] for row_id in sorted(lines))


def _response_line(samples: list[dict[str, Any]], model: str, codec: TextCodec) -> dict[str, Any]:
    first = samples[0]
    num_output = sum(sample["num_output_tokens"] for sample in samples)
    is_chat = first["is_chat"]
    body = {
        "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{first['row_id']:x}",
        "object": "chat.completion" if is_chat else "text_completion",
        "created": 0,
        "model": model,
        "choices": [_choice(sample, codec) for sample in samples],
        "usage": {
            "prompt_tokens": first["num_prompt_tokens"],
            "completion_tokens": num_output,
            "total_tokens": first["num_prompt_tokens"] + num_output,
        },
    }
    return {
        "id": f"batch_req_{first['row_id']:x}",
        "custom_id": _custom_id(first),
        "response": {"status_code": 200, "request_id": f"req_{first['row_id']:x}", "body": body},
        "error": None,
    }


def _custom_id(row: Mapping[str, Any]) -> str | None:
    """Return the row's own id as the API has it: text."""
    return None if row["id"] is None else str(row["id"])


def _choice(sample: Mapping[str, Any], codec: TextCodec) -> dict[str, Any]:
    is_chat, text = sample["is_chat"], sample["text"]
    finish_reason, logprobs = "tool_calls" if sample.get("tool_calls") else "stop", dict[str, Any]()
    if sample["finish_reason"] == "length":
        finish_reason = "length"
    if sample["logprobs"] is not None:
        tops = sample["top_logprobs"] or [[] for _ in sample["token_ids"]]
        if is_chat:
            scored = zip(sample["token_ids"], sample["logprobs"], tops, strict=True)
            content = [
                _token(codec, token_id, logprob)
                | {"top_logprobs": [_token(codec, top["token_id"], top["logprob"]) for top in others]}
                for token_id, logprob, others in scored
            ]
            logprobs = {"content": content}
        else:
            logprobs = {
                "tokens": [codec.token_text(token_id) for token_id in sample["token_ids"]],
                "token_logprobs": sample["logprobs"],
                "top_logprobs": [
                    {codec.token_text(top["token_id"]): top["logprob"] for top in others} for others in tops
                ],
            }
    return {
        "index": sample["sample"],
        **({"message": _message(sample)} if is_chat else {"text": text}),
        "finish_reason": finish_reason,
        "logprobs": logprobs or None,
    }


def _message(sample: Mapping[str, Any]) -> dict[str, Any]:
    """Return the message of a chat: in its parts, if the run has them."""
    message: dict[str, Any] = {"role": "assistant", "content": sample["text"]}
    if "tool_calls" not in sample:
        return message
    reasoning, calls = sample["reasoning"], sample["tool_calls"]
    if reasoning is None and not calls:
        return message
    message["content"] = sample["content"]
    if reasoning is not None:
        message["reasoning"] = reasoning
    if calls:
        message["tool_calls"] = [shown_call(**call) for call in calls]
    return message


def _token(codec: TextCodec, token_id: int, logprob: float) -> dict[str, Any]:
    text = codec.token_text(token_id)
    return {"token": text, "logprob": logprob, "bytes": None if "\ufffd" in text else list(text.encode("utf-8"))}
