"""Every input row has one line of OpenAI batch output."""

import json
from pathlib import Path
from typing import Any

from pipeline.export.openai_batch import export_batch
from pipeline.run.directory import RunDirectory
from pipeline.text.codec import TextCodec
from tests.pipeline.made_up import RUN, commit_rows, generation, run_with_integer_ids, unit


def _export(run_directory: RunDirectory, codec: TextCodec, path: Path) -> list[dict[str, Any]]:
    num_lines = export_batch(run_directory, str(path), "target", codec)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert num_lines == len(lines)
    return lines


def test_every_row_has_one_line_in_input_order_failed_rows_included(finished_run, codec, tmp_path):
    lines = _export(finished_run, codec, tmp_path / "out.jsonl")
    ids = [0, 1, 2, 1 << 32, None, (1 << 32) + 2]
    assert [line["custom_id"] for line in lines] == ["user-1" if row is None else f"user-{row}" for row in ids]
    assert lines[4]["response"] is None
    assert lines[4]["error"] == {"code": "invalid_request", "message": "bad"}
    body = lines[0]["response"]["body"]
    assert lines[0]["error"] is None
    assert body["object"] == "text_completion"
    assert body["usage"] == {"prompt_tokens": 4, "completion_tokens": 10, "total_tokens": 14}
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    assert body["choices"][0] == {"index": 0, "text": "abcde", "finish_reason": "length", "logprobs": None}


def test_chat_rows_have_messages_and_logprobs_by_token(codec, tmp_path):
    run_directory = RunDirectory.create(str(tmp_path / "run"), RUN, [unit(0, num_rows=1)])
    token_ids = codec.encode("the", is_chat=True)
    num = len(token_ids)
    row = generation(0, is_chat=True, text="the", token_ids=token_ids, num_output_tokens=num, finish_reason="eos")
    row |= {"logprobs": [-0.5] * num, "top_logprobs": [[{"token_id": t, "logprob": -0.5}] for t in token_ids]}
    row |= {"num_rounds": num, "num_accepted_tokens": 0, "num_draft_tokens": 0, "accepted_per_position": []}
    commit_rows(run_directory, unit(0, num_rows=1), [row], [])
    (line,) = _export(run_directory, codec, tmp_path / "out.jsonl")
    body = line["response"]["body"]
    (choice,) = body["choices"]
    assert body["object"] == "chat.completion"
    assert choice["message"] == {"role": "assistant", "content": "the"}
    assert choice["finish_reason"] == "stop"
    content = choice["logprobs"]["content"]
    assert "".join(token["token"] for token in content) == "the"
    assert bytes(byte for token in content for byte in token["bytes"]) == b"the"
    assert content[0]["top_logprobs"][0]["logprob"] == -0.5


def test_a_custom_id_is_text_where_ids_are_integers(codec, tmp_path):
    lines = _export(run_with_integer_ids(str(tmp_path / "run")), codec, tmp_path / "out.jsonl")
    assert [line["custom_id"] for line in lines] == ["70", "71", "72"]
