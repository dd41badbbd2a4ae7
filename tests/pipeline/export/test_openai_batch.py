"""Every input row has one line of OpenAI batch output."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from pipeline.export.openai_batch import export_batch
from pipeline.run.directory import RunDirectory
from pipeline.run.unit_rows import IncompleteRunError
from pipeline.storage.location import Location
from pipeline.text.codec import TextCodec
from tests.pipeline.made_up import RUN, commit_rows, generation, unit


def _export(run_directory: RunDirectory, codec: TextCodec, path: Path) -> list[dict[str, Any]]:
    num_lines = export_batch(run_directory, str(path), "target", codec)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert num_lines == len(lines)
    return lines


def test_every_row_has_one_line_in_input_order_failed_rows_included(
    finished_run: RunDirectory, codec: TextCodec, tmp_path: Path
) -> None:
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


def test_a_repeated_export_gives_the_same_file(finished_run: RunDirectory, codec: TextCodec, tmp_path: Path) -> None:
    for name in ("a", "b"):
        _export(finished_run, codec, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_chat_rows_have_messages_and_logprobs_by_token(codec: TextCodec, tmp_path: Path) -> None:
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


def test_an_incomplete_run_is_refused_before_anything_is_written(
    finished_run: RunDirectory, codec: TextCodec, tmp_path: Path
) -> None:
    Path(finished_run.part_path(1).path).unlink()
    (tmp_path / "out.jsonl").write_text("older")
    with pytest.raises(IncompleteRunError, match=r"1 of 2 units are missing, the first is unit 1 \("):
        export_batch(finished_run, str(tmp_path / "out.jsonl"), "target", codec)
    with pytest.raises(IncompleteRunError):
        export_batch(finished_run, str(tmp_path / "new/out.jsonl"), "target", codec)
    assert (tmp_path / "out.jsonl").read_text() == "older"
    assert not (tmp_path / "new").exists()


def test_an_export_that_dies_halfway_leaves_the_older_file(
    finished_run: RunDirectory, codec: TextCodec, tmp_path: Path
) -> None:
    Path(finished_run.part_path(1).path).write_bytes(b"damaged")
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "a.jsonl").write_text("older")
    for name in ("a.jsonl", "b.jsonl"):
        with pytest.raises(ValueError, match="Parquet"):
            export_batch(finished_run, str(folder / name), "target", codec)
    assert [(file.name, file.read_text()) for file in folder.iterdir()] == [("a.jsonl", "older")]


def test_a_missing_destination_folder_is_made_and_an_impossible_one_is_an_error_of_its_own(
    finished_run: RunDirectory, codec: TextCodec, tmp_path: Path
) -> None:
    assert len(_export(finished_run, codec, tmp_path / "new/deep/out.jsonl")) == 6
    assert os.listdir(tmp_path / "new/deep") == ["out.jsonl"]
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file/out.jsonl", tmp_path / "new"):
        with pytest.raises(OSError, match=r"irectory|exists") as caught:
            export_batch(finished_run, str(path), "target", codec)
        assert caught.value.errno in (errno.ENOTDIR, errno.EISDIR, errno.EEXIST)


def test_exporting_to_a_link_or_a_device_does_not_replace_it(
    finished_run: RunDirectory, codec: TextCodec, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real.jsonl")
    _export(finished_run, codec, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real.jsonl").is_file()
    assert export_batch(finished_run, "/dev/null", "target", codec) == 6
    assert Path("/dev/null").is_char_device()


def test_an_export_to_an_object_store_arrives_whole(
    finished_run: RunDirectory, codec: TextCodec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Location(fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem()), "out.jsonl", "s3://bucket/out.jsonl")
    monkeypatch.setattr("pipeline.export.openai_batch.Location.parse", lambda _: store)
    assert export_batch(finished_run, "s3://bucket/out.jsonl", "target", codec) == 6
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 6
