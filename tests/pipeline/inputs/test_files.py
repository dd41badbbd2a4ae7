"""The files that input paths name."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pyarrow import fs

from pipeline.inputs.files import inputs_digest, list_files
from pipeline.storage.location import Location

Write = Callable[[str, bytes], str]


@pytest.fixture
def folder(tmp_path: Path, write: Write) -> Path:
    for name in ("b.txt", "a.txt", "sub/c.txt", "sub/deep/d.txt", ".hidden.txt", "_tmp/e.txt", "sub/_SUCCESS", "f.csv"):
        write(f"in/{name}", b"x")
    return tmp_path / "in"


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("", ["a.txt", "b.txt", "f.csv", "sub/c.txt", "sub/deep/d.txt"]),
        ("/a.txt", ["a.txt"]),
        ("/*.txt", ["a.txt", "b.txt"]),
        ("/?.txt", ["a.txt", "b.txt"]),
        ("/[!a].txt", ["b.txt"]),
        ("/**/*.txt", ["a.txt", "b.txt", "sub/c.txt", "sub/deep/d.txt"]),
        ("/sub/*", ["sub/c.txt"]),
        ("/*/deep/*.txt", ["sub/deep/d.txt"]),
    ],
)
@pytest.mark.parametrize("scheme", ["", "file://"])
def test_the_files_of_a_path_are_sorted_and_hidden_ones_skipped(folder, pattern, expected, scheme):
    if scheme and "?" in pattern:
        pytest.skip("in a URI a question mark starts the options")
    files = list_files(f"{scheme}{folder}{pattern}")
    assert [file.path for file in files] == [str(folder / name) for name in expected]
    assert all(file.size == 1 and int(file.version) > 0 for file in files)


def test_relative_paths_become_absolute(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert [file.path for file in list_files(["sub/*.txt", "a.txt"])] == [f"{folder}/sub/c.txt", f"{folder}/a.txt"]
    assert [file.path for file in list_files("*.csv")] == [str(folder / "f.csv")]


def test_a_file_whose_name_looks_like_a_glob_is_that_file(write):
    path = write("in/[x]*.txt", b"x")
    write("in/x1.txt", b"x")
    assert [file.path for file in list_files(path)] == [path]


def test_a_path_without_files_is_refused_with_what_was_looked_for(folder):
    for path in (f"{folder}/nope.txt", f"{folder}/*.parquet", f"{folder}/_tmp/../nope"):
        with pytest.raises(ValueError, match=r"no input file at .* looked for a file, a folder with files and a glob"):
            list_files(path)


def test_a_file_that_two_paths_name_is_refused(folder):
    with pytest.raises(ValueError, match=r"a\.txt is named twice"):
        list_files([f"{folder}/*.txt", f"{folder}/a.txt"])


def test_a_password_in_a_uri_is_refused_and_not_repeated():
    with pytest.raises(ValueError, match="AWS_ACCESS_KEY_ID") as caught:
        list_files("s3://key:secret@bucket/in")
    assert "secret" not in str(caught.value)


def test_a_location_below_a_uri_keeps_the_uris_options():
    bucket = Location(fs.SubTreeFileSystem("/", fs.LocalFileSystem()), "bucket/in", "s3://bucket/in?region=x")
    assert bucket.at("bucket/in/a b.txt").name == "s3://bucket/in/a%20b.txt?region=x"


def test_the_digest_of_the_inputs_changes_with_any_file(folder, write):
    before = list_files(str(folder))
    assert inputs_digest(before) == inputs_digest(list_files(str(folder)))
    assert inputs_digest(before) != inputs_digest(before[1:])
    write("in/a.txt", b"xy")
    assert inputs_digest(before) != inputs_digest(list_files(str(folder)))
