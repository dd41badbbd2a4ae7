"""OpenAI batch output: one JSON line for every input row, generated or failed, in input order.

Format: https://platform.openai.com/docs/api-reference/batch/request-output
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

from pipeline.errors import Stage
from pipeline.run.directory import RunDirectory
from pipeline.run.unit_rows import UnitRows, each_unit, refuse_incomplete
from pipeline.storage.location import Location
from pipeline.storage.whole_file import replacement
from pipeline.text.codec import TextCodec

_Scored = tuple[int, float, list[dict[str, Any]]]  # an output token's id, its logprob, and the alternatives to it
_ERROR_CODES: Mapping[Stage, str] = {
    "read": "invalid_request",
    "template": "invalid_messages",
    "encode": "invalid_prompt",
    "params": "invalid_parameter",
    "generate": "generation_failed",
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


def _unit_lines(rows: UnitRows, model: str, codec: TextCodec) -> Iterator[dict[str, Any]]:
    lines = {error["row_id"]: _error_line(error) for error in rows.errors.to_pylist()}
    for row_id, samples in groupby(rows.generations.to_pylist(), key=lambda row: row["row_id"]):
        lines[row_id] = _response_line(list(samples), model, codec)
    yield from (lines[row_id] for row_id in sorted(lines))


def _error_line(error: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": f"batch_req_{error['row_id']:x}",
        "custom_id": _custom_id(error),
        "response": None,
        "error": {"code": _ERROR_CODES[error["stage"]], "message": error["message"]},
    }


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
    logprobs = None
    if sample["logprobs"] is not None:
        tops = sample["top_logprobs"] or [[] for _ in sample["token_ids"]]
        scored = list(zip(sample["token_ids"], sample["logprobs"], tops, strict=True))
        logprobs = (_chat_logprobs if is_chat else _completion_logprobs)(scored, codec)
    return {
        "index": sample["sample"],
        **({"message": {"role": "assistant", "content": text}} if is_chat else {"text": text}),
        "finish_reason": "length" if sample["finish_reason"] == "length" else "stop",
        "logprobs": logprobs,
    }


def _chat_logprobs(scored: list[_Scored], codec: TextCodec) -> dict[str, Any]:
    return {
        "content": [
            _token(codec, token_id, logprob)
            | {"top_logprobs": [_token(codec, top["token_id"], top["logprob"]) for top in tops]}
            for token_id, logprob, tops in scored
        ]
    }


def _completion_logprobs(scored: list[_Scored], codec: TextCodec) -> dict[str, Any]:
    return {
        "tokens": [codec.token_text(token_id) for token_id, _, _ in scored],
        "token_logprobs": [logprob for _, logprob, _ in scored],
        "top_logprobs": [{codec.token_text(top["token_id"]): top["logprob"] for top in tops} for _, _, tops in scored],
    }


def _token(codec: TextCodec, token_id: int, logprob: float) -> dict[str, Any]:
    text = codec.token_text(token_id)
    return {"token": text, "logprob": logprob, "bytes": None if "\ufffd" in text else list(text.encode("utf-8"))}
