"""Files that are not quite what a format says: each is read as it is meant, or refused with what to do about it."""

import bz2
import gzip
from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import ErrorRow
from pipeline.inputs.files import list_files
from pipeline.inputs.options import InputOptions, resolve_options
from pipeline.inputs.rows import InputRow
from pipeline.inputs.units import plan_units
from tests.pipeline.made_up import read_all, sound

Write = Callable[[str, bytes], str]
_LINES = b'{"prompt": "a"}\n{"prompt": "b"}\n'


def prompts(rows: list[InputRow | ErrorRow]) -> list[str | None]:
    return [row.prompt if isinstance(row, InputRow) else row.message for row in rows]


def refusal(path: str | list[str], options: InputOptions | None = None) -> str:
    """Return what planning says about a file."""
    files = list_files(path)
    with pytest.raises(ValueError, match=r"\w") as caught:
        list(plan_units(files, resolve_options(files, options or InputOptions()), 9))
    return str(caught.value)


ARRAYS = [b'[{"prompt": "a"}, {"prompt": "b"}]', b'[\n{"prompt": "a"},\n{"prompt": "b"}\n]', b"[]", b"\xef\xbb\xbf[1]"]
OVER_LINES = b'{\n "prompt": "a"\n}\n{\n "prompt": "b"\n}'


@pytest.mark.parametrize(
    ("name", "content", "advice"),
    [
        *(("in.jsonl", content, "if it is one JSON array, this makes lines of it: jq -c '.[]'") for content in ARRAYS),
        ("in.json", ARRAYS[0], "if it is one JSON array, this makes lines of it: jq -c '.[]'"),
        ("in.jsonl", OVER_LINES, "if it is JSON over several lines, this makes lines of it: jq -c ."),
    ],
)
def test_json_of_another_form_is_refused_with_the_command_that_makes_lines_of_it(write, name, content, advice):
    assert f"{name}, first line: " in (said := refusal(write(name, content)))
    assert said.endswith(f"; {advice} IN.json > OUT.jsonl")


def test_a_file_whose_first_lines_are_all_wrong_is_refused_and_one_with_a_good_line_is_not(write):
    assert "not UTF-8: byte 0 is 0xff" in refusal(write("u.jsonl", '{"prompt": "a"}\n'.encode("utf-16")))
    rows = read_all(list_files(write("p.jsonl", b'{"prompt": \n' + _LINES)), InputOptions(), 9)
    assert [isinstance(row, InputRow) for row in rows] == [False, True, True]


def test_json_lines_in_a_file_called_json_are_rows(write):
    assert prompts(read_all(list_files(write("in.json", _LINES)), InputOptions(), 9)) == ["a", "b"]


@pytest.mark.parametrize("ending", ["gz", "zst", "ZST", "bz2"])
def test_lines_compressed_in_several_frames_are_read_to_their_end(write, ending):
    halves = [_LINES[:20], _LINES[20:]]
    others = {"gz": gzip.compress, "bz2": bz2.compress}
    compress = others.get(ending, lambda half: pa.compress(half, codec="zstd", asbytes=True))
    path = write(f"in.jsonl.{ending}", b"".join(map(compress, halves)))
    for rows_per_unit in (1, 9):
        assert prompts(read_all(list_files(path), InputOptions(), rows_per_unit)) == ["a", "b"]


CSV = 'prompt;kind\n"a; ""b""";1\n"two\nlines";2\n'


@pytest.mark.parametrize("separator", [";", "\t", "|", ","])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_csv_file_with_another_separator_is_refused_by_it_and_read_with_it(write, separator, mark):
    path = write("in.tsv" if separator == "\t" else "in.csv", (mark + CSV.replace(";", separator)).encode())
    other = InputOptions(csv_separator=":" if separator == "," else ",")
    assert f"(if {separator!r} separates its fields, set input.csv_separator)" in refusal(path, other)
    options = InputOptions(csv_separator="\\t" if separator == "\t" else separator)
    for rows_per_unit in (1, 9):
        assert prompts(read_all(list_files(path), options, rows_per_unit)) == [f'a{separator} "b"', "two\nlines"]


@pytest.mark.parametrize("separator", ["", ";;", '"', "\n"])
def test_a_separator_that_is_no_single_character_is_refused(separator):
    with pytest.raises(ValueError, match="csv_separator must be one character"):
        InputOptions(csv_separator=separator)


def test_files_beside_the_data_of_a_folder_are_no_input_unless_they_are_named(write):
    beside = ["README.md", "readme", "LICENSE.txt", "dataset_infos.json", ".gitattributes", "_SUCCESS", "a.jsonl.crc"]
    data, citation = write("in/a.jsonl", _LINES), write("in/citation.jsonl", _LINES)
    paths = [write(f"in/{name}", b"# no data\n") for name in beside]
    folder = data.rpartition("/")[0]
    assert [file.path for file in list_files(folder)] == [data, citation]
    assert [file.path for file in list_files(paths[0])] == [paths[0]]
    write("in/notes.md", b"")
    assert refusal(folder).endswith(f"or name the files to read by a glob, such as {folder}/*.parquet")


def test_a_folder_with_a_readme_alone_has_no_input(write):
    with pytest.raises(ValueError, match=r"no input file at .* and in a folder README, LICENSE and the like"):
        list_files(write("in/README.md", b"x").rpartition("/")[0])


def test_a_path_may_begin_at_the_home_folder(write, monkeypatch):
    path = write("home/in/a.jsonl", _LINES)
    monkeypatch.setenv("HOME", path.removesuffix("/in/a.jsonl"))
    for name in ("~/in", "~/in/*.jsonl", "~/in/a.jsonl"):
        assert [file.path for file in list_files(name)] == [path]


def test_a_table_with_a_column_twice_is_refused(write):
    path = write("in.parquet", b"")
    pq.write_table(pa.table([pa.array(["x"]), pa.array(["y"])], names=["prompt", "prompt"]), path)
    assert "it has the column 'prompt' twice; give every column its own name" in refusal(path)


def test_column_names_with_dots_and_a_frames_index_are_columns_like_others(write):
    path = write("in.parquet", b"")
    table = pa.table({"a": ["1"], "a.b": ["2"], "s": [{"x.y": "3"}], "__index_level_0__": [4]})
    pq.write_table(table, path, use_deprecated_int96_timestamps=True)
    options = InputOptions("parquet", prompt_template="{a} {s}", carry_columns=("all",), template_columns=())
    row = sound(*read_all(list_files(path), options, 9))
    assert row.prompt == '1 {"x.y": "3"}'
    assert {name: cell.to_pylist() for name, cell in row.carried.items()} == {
        name: table[name].to_pylist() for name in table.column_names
    }
