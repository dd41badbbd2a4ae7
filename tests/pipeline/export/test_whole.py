"""An export appears whole or not at all, whatever its format."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.export.jsonl import export_jsonl
from pipeline.export.openai_batch import export_batch
from pipeline.run.directory import RunDirectory
from pipeline.run.unit_rows import IncompleteRunError
from pipeline.storage.location import Location
from pipeline.text.codec import TextCodec

Export = Callable[[RunDirectory, str], Any]


@pytest.fixture(params=["jsonl", "openai-batch"])
def export(request: pytest.FixtureRequest, codec: TextCodec) -> Export:
    if request.param == "jsonl":
        return lambda run_directory, path: export_jsonl(run_directory, path, None)
    return lambda run_directory, path: export_batch(run_directory, path, "target", codec)


def test_a_damaged_or_incomplete_run_leaves_the_older_file_and_writes_no_other(export, finished_run, tmp_path):
    folder, part = tmp_path / "out", finished_run.part_path(1)
    folder.mkdir()
    (folder / "a.jsonl").write_text("older")
    for name in ("a.jsonl", "b.jsonl"):
        Path(part.path).write_bytes(b"damaged")
        with pytest.raises(ValueError, match=r"part-000000001\.parquet: damaged, or no Parquet file"):
            export(finished_run, str(folder / name))
        part.remove()
        with pytest.raises(IncompleteRunError, match=r"1 of 2 units are missing, the first is unit 1 \("):
            export(finished_run, str(folder / name))
    with pytest.raises(IncompleteRunError):
        export(finished_run, str(tmp_path / "new/a.jsonl"))
    assert [(file.name, file.read_text()) for file in folder.iterdir()] == [("a.jsonl", "older")]
    assert not (tmp_path / "new").exists()


def test_a_repeated_export_and_one_to_a_store_give_the_same_file(export, finished_run, tmp_path, s3_folder):
    Location.parse(s3_folder).make_folder()
    remote = Location.parse(s3_folder).child("c").name
    for path in (str(tmp_path / "a"), str(tmp_path / "b"), remote):
        export(finished_run, path)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() == Location.parse(remote).read_bytes() != b""


def test_a_missing_destination_folder_is_made_and_an_impossible_one_is_an_error_of_its_own(
    export, finished_run, tmp_path
):
    export(finished_run, str(tmp_path / "new/deep/out.jsonl"))
    assert os.listdir(tmp_path / "new/deep") == ["out.jsonl"]
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file/out.jsonl", tmp_path / "new"):
        with pytest.raises(OSError, match=r"irectory|exists") as caught:
            export(finished_run, str(path))
        assert caught.value.errno in (errno.ENOTDIR, errno.EISDIR, errno.EEXIST)


def test_an_export_replaces_no_link_or_device(export, finished_run, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "real.jsonl")
    export(finished_run, str(tmp_path / "link"))
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real.jsonl").is_file()
    export(finished_run, "/dev/null")
    assert Path("/dev/null").is_char_device()
