"""Rows in equals rows out, for every format and whatever is wrong with a row."""

import gzip
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import ErrorRow, RowError
from pipeline.inputs.carried import carried_types, id_type, types_from_dict, types_to_dict
from pipeline.inputs.files import list_files
from pipeline.inputs.options import InputOptions, PromptTemplate, resolve_options
from pipeline.inputs.records import to_rows
from pipeline.inputs.rows import InputRow, RowPosition, read_unit
from pipeline.inputs.units import count_rows, plan_units
from pipeline.schema import errors_table
from pipeline.storage.parquet import to_parquet
from tests.pipeline.made_up import error as error_of
from tests.pipeline.made_up import failed, read_all, sound, unit

Write = Callable[[str, bytes], str]
Read = Callable[..., list[InputRow | ErrorRow]]


@pytest.fixture
def read(write: Write) -> Read:
    """A function that writes a file, a table as Parquet, and returns its rows."""

    def read_rows(
        name: str, content: bytes | pa.Table, options: InputOptions | None = None, rows_per_unit: int = 9
    ) -> list[InputRow | ErrorRow]:
        path = write(name, content if isinstance(content, bytes) else to_parquet(content))
        return read_all(list_files(path), options or InputOptions(), rows_per_unit)

    return read_rows


def carried(row: InputRow | ErrorRow) -> dict[str, Any]:
    """Return the carried values of a row; those of a table are Arrow arrays of one."""
    values = sound(row).carried.items()
    return {name: value.to_pylist()[0] if isinstance(value, pa.Array) else value for name, value in values}


def prompts(rows: list[InputRow | ErrorRow]) -> list[str | None]:
    return [sound(row).prompt for row in rows]


PROMPTS = ["plain", 'with "quotes", and commas', "über 日本語 🙂", "two\nlines", "a\n\n\nb", "", "end "]
ENDINGS = [b"\n", b"\r\n"]


def _csv(ending: bytes) -> bytes:
    lines = [b"prompt,kind"]
    lines += [b'"%s",%d' % (prompt.replace('"', '""').encode(), index) for index, prompt in enumerate(PROMPTS)]
    lines[3:3] = [b"", b"   "]  # blank lines
    return ending.join(lines)


def _jsonl(ending: bytes) -> bytes:
    lines = [json.dumps({"prompt": prompt, "kind": 1}, ensure_ascii=False).encode() for prompt in PROMPTS]
    lines[2:2] = [b"", b" \t "]
    return ending.join(lines)


CONTENTS = [
    (f"prompts.{format_}{packed}", byte_order_mark + make(ending) + last)
    for format_, make in (("csv", _csv), ("jsonl", _jsonl))
    for ending in ENDINGS
    for last in (b"", ending, ending * 3)
    for byte_order_mark in (b"", b"\xef\xbb\xbf")
    for packed in ("", ".gz")
]


@pytest.mark.parametrize(("name", "content"), CONTENTS)
def test_byte_ranges_give_the_same_rows_as_reading_the_whole_file(read, name, content):
    packed = gzip.compress(content) if name.endswith(".gz") else content
    for rows_per_unit in (1, 2, 3, 100):
        rows = read(name, packed, rows_per_unit=rows_per_unit)
        assert prompts(rows) == PROMPTS
        assert [row.row_number for row in rows] == list(range(len(PROMPTS)))


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("last", [b"", b"\n", b"\n\n"])
def test_text_lines_are_prompts_and_blank_lines_are_not_counted(read, ending, last):
    content = b"\xef\xbb\xbf" + ending.join([b"one ", b"", b"  ", b" two", b"three"]) + last
    for rows_per_unit in (1, 2, 10):
        assert prompts(read("p.txt", content, rows_per_unit=rows_per_unit)) == ["one ", " two", "three"]


@pytest.mark.parametrize("row_group_size", [1, 3, 1000])
@pytest.mark.parametrize("rows_per_unit", [1, 4, 7, 1000])
def test_parquet_row_ranges_give_every_row_once(write, row_group_size, rows_per_unit):
    path = write("p.parquet", b"")
    pq.write_table(pa.table({"prompt": [f"p{i}" for i in range(600)]}), path, row_group_size=row_group_size)
    rows = read_all(list_files(path), InputOptions(), rows_per_unit if rows_per_unit > 100 else rows_per_unit * 50)
    assert prompts(rows) == [f"p{i}" for i in range(600)]


def test_row_ids_are_unique_over_files_with_equal_prompts(write):
    paths = [write(f"in/{name}.txt", b"same\nsame\nsame\n") for name in "ab"]
    rows = read_all(list_files(paths), InputOptions(), 2)
    assert [row.row_id for row in rows] == [0, 1, 1 << 32, 2 << 32, (2 << 32) + 1, 3 << 32]


BAD_LINES = {
    b'{"prompt": "x"': ("read", "not a JSON line"),
    b"[1, 2]": ("read", "expected a JSON object on the line, got list"),
    b"\xff\xfe": ("read", "not UTF-8: byte 0 is 0xff"),
    b'{"text": "x"}': ("read", "'prompt' and 'messages' are null or absent; the row has ['text']"),
    b'{"prompt": null}': ("read", "null or absent"),
    b'{"prompt": 5}': ("read", "column 'prompt': expected a string, got int"),
    b'{"prompt": "\\ud800"}': ("read", "half a surrogate pair"),
    b'{"messages": "[\\"\\\\ud800\\"]"}': ("read", "column 'messages': not JSON: it holds half a surrogate pair"),
    b'{"prompt": "x", "sampling": "{\\"stop\\": \\"\\\\ud800\\"}"}': ("params", "half a surrogate pair"),
    b'{"prompt": "x", "messages": [{}]}': ("read", "a prompt and messages"),
    b'{"messages": {"role": "user"}}': ("read", "column 'messages': expected a list, got dict"),
    b'{"messages": "{{"}': ("read", "column 'messages': not JSON"),
    b'{"prompt": "x", "sampling": [1]}': ("params", "column 'sampling': expected an object, got list"),
    b'{"prompt": "x", "sampling": "{"}': ("params", "column 'sampling': not JSON"),
    b"[" * 200_000: ("read", "not a JSON line"),
}
BAD_RECORDS = {
    b"x": ("read", "1 fields and the header has 2"),
    b"x,1,2": ("read", "3 fields and the header has 2"),
    b'"x"y,1': ("read", "not a CSV record"),
    b"\xff,1": ("read", "not UTF-8"),
    b"a\rb,1": ("read", "not a CSV record"),
}
JSON_NEIGHBOURS = ("p.jsonl", b'{"prompt": "a"}\n%s\n{"prompt": "b"}\n')
CSV_NEIGHBOURS = ("p.csv", b"prompt,kind\na,1\n%s\nb,2\n")


@pytest.mark.parametrize(
    ("file", "line", "stage", "message"),
    [(JSON_NEIGHBOURS, line, *expected) for line, expected in BAD_LINES.items()]
    + [(CSV_NEIGHBOURS, record, *expected) for record, expected in BAD_RECORDS.items()],
)
@pytest.mark.parametrize("rows_per_unit", [1, 3])
def test_a_bad_line_is_an_error_row_and_its_neighbours_are_sound(read, file, line, stage, message, rows_per_unit):
    name, neighbours = file
    before, bad, after = read(name, neighbours % line, rows_per_unit=rows_per_unit)
    assert prompts([before, after]) == ["a", "b"]
    error = failed(bad)
    assert (error.stage, error.row_number, Path(error.file).name) == (stage, 1, name)
    assert message in error.message


def test_a_quote_that_is_never_closed_is_one_error_row(read):
    first, bad = read("p.csv", b'prompt\na\n"never closed\nb\nc\n', rows_per_unit=1)
    assert sound(first).prompt == "a"
    assert "unexpected end of data (it took 3 lines)" in failed(bad).message


def test_a_csv_prompt_longer_than_the_csv_modules_own_limit_is_read(read):
    assert prompts(read("p.csv", b"prompt\n" + b"x" * 300_000)) == ["x" * 300_000]


def test_overrides_come_from_objects_structs_and_json_text(read):
    overrides = {"temperature": 0.5, "stop": ["a"]}
    jsonl = json.dumps({"prompt": "x", "sampling": overrides}).encode()
    csv = b'prompt,sampling\nx,"{""temperature"": 0.5, ""stop"": [""a""]}"\ny,\n'
    parquet = pa.Table.from_pylist([{"prompt": "x", "sampling": {**overrides, "seed": None}}])
    for name, content in [("p.jsonl", jsonl), ("p.csv", csv), ("p.parquet", parquet)]:
        assert sound(read(name, content)[0]).overrides == overrides


def test_a_prompt_template_fills_the_prompt_from_columns(read):
    lines = b'{"q": "why?", "n": 3}\n{"q": null, "n": 1}\n{"n": 1}'
    good, null, absent = read("p.jsonl", lines, InputOptions(prompt_template="{{Q}}: {q} x{n}\nA:"))
    assert sound(good).prompt == "{Q}: why? x3\nA:"
    assert (failed(null).stage, failed(null).message) == ("template", "prompt_template: column 'q' is null")
    assert "column 'q' is not among ['n']" in failed(absent).message


@pytest.mark.parametrize("template", ["no column", "{}", "{a.b}", "{a[0]}", "{a!r}", "{a:>3}", "{a", "a}"])
def test_a_prompt_template_that_is_not_columns_in_braces_is_refused(template):
    with pytest.raises(ValueError, match="prompt_template"):
        PromptTemplate.parse(template)


def _with_ids(paths: list[str]) -> tuple[pa.DataType, list[InputRow | ErrorRow]]:
    """Return the type of the ids in the column "key" of these files, and the rows."""
    files, options = list_files(paths), InputOptions(id_column="key")
    return id_type(files, resolve_options(files, options)), read_all(files, options, 2000)


def _keys(type_: pa.DataType, *values: object) -> bytes:
    return to_parquet(pa.table({"prompt": ["x"] * len(values), "key": pa.array(values, type_)}))


JSON_KEYS = b'{"prompt": "x", "key": %s}\n'
INTEGER_KEYS = {
    "j.jsonl": JSON_KEYS % b"7" + JSON_KEYS % b"null" + b'{"prompt": "x"}\n' + JSON_KEYS % b"-8",
    "i64.parquet": _keys(pa.int64(), 7, None, None, -8),
    "i8.parquet": _keys(pa.int8(), 7, None, None, -8),
    "d.parquet": _keys(pa.dictionary(pa.int8(), pa.int32()), 7, None, None, -8),
}
TEXT_KEYS = {
    "mixed.jsonl": (JSON_KEYS % b"7" + JSON_KEYS % b'"a"', ["7", "a"]),
    "float.jsonl": (JSON_KEYS % b"7" + JSON_KEYS % b"7.5", ["7", "7.5"]),
    "bool.jsonl": (JSON_KEYS % b"true", ["true"]),
    "big.jsonl": (JSON_KEYS % b"9223372036854775808", ["9223372036854775808"]),
    "list.jsonl": (JSON_KEYS % b"[7]", ["[7]"]),
    "none.jsonl": (JSON_KEYS % b"null" + b'{"prompt": "x"}\n', [None, None]),
    "c.csv": (b"prompt,key\nx,007\n", ["007"]),
    "u.parquet": (_keys(pa.uint64(), 7, 2**64 - 1), ["7", "18446744073709551615"]),
    "f.parquet": (_keys(pa.float64(), 7.5), ["7.5"]),
}


@pytest.mark.parametrize("name", INTEGER_KEYS)
def test_an_integer_id_is_an_integer(write, name):
    type_, rows = _with_ids([write(name, INTEGER_KEYS[name])])
    assert (type_, [sound(row).user_id for row in rows]) == (pa.int64(), [7, None, None, -8])


@pytest.mark.parametrize("name", TEXT_KEYS)
def test_any_other_id_is_text(write, name):
    content, ids = TEXT_KEYS[name]
    type_, rows = _with_ids([write(name, content)])
    assert (type_, [sound(row).user_id for row in rows]) == (pa.string(), ids)


def test_ids_of_parquet_files_are_text_unless_all_are_integers(write):
    contents = {"a": _keys(pa.int64(), 1), "b": _keys(pa.int32(), 2), "c": _keys(pa.string(), "three")}
    paths = [write(f"{name}.parquet", content) for name, content in contents.items()]
    type_, rows = _with_ids(paths[:2])
    assert (type_, [sound(row).user_id for row in rows]) == (pa.int64(), [1, 2])
    type_, rows = _with_ids(paths)
    assert (type_, [sound(row).user_id for row in rows]) == (pa.string(), ["1", "2", "three"])


@pytest.mark.parametrize("value", [b'"seven"', b"1.5", b"true", b"9223372036854775808"])
def test_an_id_that_is_no_integer_behind_a_thousand_integers_is_an_error_row(write, value):
    *_, bad, good = _with_ids([write("p.jsonl", JSON_KEYS % b"7" * 1000 + JSON_KEYS % value + JSON_KEYS % b"8")])[1]
    assert (failed(bad).id, failed(bad).stage) == (None, "read")
    assert failed(bad).message.startswith("id column 'key', which has integers in the rows before (write all ")
    assert sound(good).user_id == 8


def test_the_id_of_an_openai_batch_is_text(write):
    request = b'{"custom_id": "1", "url": "/v1/completions", "body": {"prompt": "x"}, "key": 5}\n'
    type_, (row,) = _with_ids([write("b.jsonl", request)])
    assert (type_, sound(row).user_id) == (pa.string(), "1")


def test_ids_are_strings_and_every_carried_column_has_one_type(write):
    lines = [{"prompt": "x", "key": i, "score": 1 if i else 0.5, "tags": ["a"], "kind": "k"} for i in range(3)]
    lines.append({"prompt": "x", "key": "seven", "score": 1.5, "tags": "t", "kind": "k"})
    files = list_files(write("p.jsonl", "\n".join(map(json.dumps, lines)).encode()))
    options = InputOptions(format="jsonl", id_column="key", carry_columns=("score", "tags", "kind"))
    types = types_from_dict(json.loads(json.dumps(types_to_dict(carried_types(files, options)))))
    assert types == {"score": pa.float64(), "tags": pa.json_(), "kind": pa.string()}
    (unit,) = plan_units(files, options, 9)
    rows = list(read_unit(unit, options, types))
    assert [sound(row).user_id for row in rows] == ["0", "1", "2", "seven"]
    assert sound(rows[3]).carried == {"score": 1.5, "tags": '"t"', "kind": "k"}


@pytest.mark.parametrize("value", [1.5, True, "5", [1], 2**70])
def test_a_carried_value_that_does_not_fit_its_type_is_an_error_row(write, value):
    lines = [{"prompt": "x", "year": 2000}] * 1000 + [{"prompt": "x", "year": value}, {"prompt": "x"}]
    *_, bad, absent = _carrying(write("p.jsonl", "\n".join(map(json.dumps, lines)).encode()), "year")
    error = failed(bad)
    assert (error.stage, error.attempt) == ("read", 0)
    assert error.message.startswith("carried column 'year': expected int64, got ")
    assert sound(absent).carried == {"year": None}


def _carrying(path: str, column: str) -> list[InputRow | ErrorRow]:
    """Return the rows of a file with this column carried."""
    return read_all(list_files(path), InputOptions(carry_columns=(column,)), 2000)


def _carrying_all(paths: list[str], **more: str) -> tuple[dict[str, pa.DataType], list[InputRow | ErrorRow]]:
    """Return the types that `carry_columns: all` carries from these files, and the rows."""
    files = list_files(paths)
    options = resolve_options(files, InputOptions(id_column="key", carry_columns=("all",), **more))  # type: ignore[arg-type]
    return carried_types(files, options), read_all(files, options, 2000)


ALL_COLUMNS = {"prompt": "x", "messages": None, "sampling": None, "key": "k", "kind": "c", "all": 1}


@pytest.mark.parametrize("form", ["jsonl", "parquet", "csv"])
def test_all_other_columns_are_carried_under_their_names(write, form):
    contents = {
        "jsonl": json.dumps(ALL_COLUMNS).encode(),
        "parquet": to_parquet(pa.Table.from_pylist([ALL_COLUMNS])),
        "csv": b"prompt,messages,sampling,key,kind,all\nx,,,k,c,1\n",
    }
    types, (row,) = _carrying_all([write(f"p.{form}", contents[form])])
    number = pa.string() if form == "csv" else pa.int64()
    assert types == {"kind": pa.string(), "all": number}
    assert carried(row) == {"kind": "c", "all": "1" if form == "csv" else 1}


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_all_columns_are_those_of_all_files(write, form):
    rows = {"a": {"prompt": "x", "key": "1", "kind": "c"}, "b": {"prompt": "y", "key": "2", "mood": "glad"}}
    paths = []
    for name, row in rows.items():
        text = "\n".join(",".join(cells) for cells in (row.keys(), row.values()))
        content = text.encode() if form == "csv" else to_parquet(pa.Table.from_pylist([row]))
        paths.append(write(f"{name}.{form}", content))
    types, found = _carrying_all(paths)
    assert types == {"kind": pa.string(), "mood": pa.string()}
    assert [carried(row) for row in found] == [{"kind": "c", "mood": None}, {"kind": None, "mood": "glad"}]


@pytest.mark.parametrize("line", [b'{"prompt": "x", "text": "y"}', b'{"q": "x", "prompt": "y"}'])
def test_with_all_columns_one_that_has_the_name_of_an_output_column_is_refused(write, line):
    template = {"prompt_template": "{q}"} if b'"q"' in line else {}
    with pytest.raises(ValueError, match=r"carried columns \['(text|prompt)'\] have names that the output uses itself"):
        _carrying_all([write("p.jsonl", line)], **template)


def test_a_column_that_first_appears_behind_a_thousand_rows_is_an_error_row(write):
    lines = b'{"key": 1, "prompt": "x", "a": 1}\n' * 1000 + b'{"prompt": "x", "b": 1}\n{"prompt": "x", "b": null}\n'
    types, (*_, bad, null) = _carrying_all([write("p.jsonl", lines)])
    assert types == {"a": pa.int64()}
    assert failed(bad).message.startswith("column 'b' is in none of the first 1000 rows")
    assert sound(null).carried == {"a": None}


def test_of_an_openai_batch_all_other_columns_are_those_beside_the_request(write):
    request = b'{"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}, "topic": "t"}'
    types, (row,) = _carrying_all([write("b.jsonl", request)])
    assert (types, sound(row).carried) == ({"topic": pa.string()}, {"topic": "t"})


@pytest.mark.parametrize("name", ["p.jsonl", "p.csv", "p.txt"])
def test_named_columns_of_an_empty_input_are_strings_and_all_of_them_none(write, name):
    files = list_files(write(name, b""))
    column = "prompt" if name == "p.txt" else "kind"
    named = resolve_options(files, InputOptions(prompt_column=f"my {column}", carry_columns=(f"my {column}",)))
    assert carried_types(files, named) == {f"my {column}": pa.string()}
    assert carried_types(files, replace(named, carry_columns=("all",))) == {}


def test_a_nan_in_carried_json_text_is_an_error_row(write):
    lines = b'{"prompt": "x", "tags": [1]}\n{"prompt": "x", "tags": [NaN]}\n'
    good, bad = _carrying(write("p.jsonl", lines), "tags")
    assert sound(good).carried == {"tags": "[1]"}
    error = failed(bad)
    assert (error.stage, error.row_number) == ("read", 1)
    assert error.message.startswith("carried column 'tags': no JSON text: ")


@pytest.mark.parametrize(("column", "match"), [("nope", "not in the input"), ("row_id", "output uses itself")])
def test_an_absent_carried_column_or_one_with_a_reserved_name_is_refused(write, column, match):
    files = list_files(write("p.jsonl", b'{"prompt": "x", "row_id": 1}'))
    with pytest.raises(ValueError, match=match):
        carried_types(files, InputOptions(format="jsonl", carry_columns=(column,)))


def test_an_id_column_that_no_row_has_is_refused(write):
    files = list_files(write("p.jsonl", b'{"prompt": "x", "key": null}'))
    with pytest.raises(ValueError, match=r"^input\.id_column: 'kye' is not in the input: .*p\.jsonl has prompt, key$"):
        id_type(files, InputOptions(format="jsonl", id_column="kye"))
    assert id_type(files, InputOptions(format="jsonl", id_column="key")) == pa.string()


def test_what_is_wrong_with_a_line_has_no_number_of_a_line_which_would_read_as_the_files(write):
    files = list_files(write("p.jsonl", b'{"prompt": "whole"}\n{"prompt": "half'))
    _, torn = read_all(files, InputOptions(format="jsonl"), 2)
    assert failed(torn).message == "not a JSON line: Unterminated string starting at: column 12 (char 11)"


def test_a_file_without_the_columns_asked_for_is_refused_at_planning(write):
    files = list_files(write("p.csv", b"text,kind\nx,y\n"))
    with pytest.raises(ValueError, match=r"neither a prompt column 'prompt' nor .* the file has text, kind"):
        list(plan_units(files, InputOptions(format="csv"), 1))
    with pytest.raises(ValueError, match="no column 'key'; the file has"):
        list(plan_units(files, InputOptions(format="csv", prompt_column="text", id_column="key"), 1))


@pytest.mark.parametrize("type_", [pa.int64(), pa.list_(pa.string()), pa.uuid(), pa.dictionary(pa.int8(), pa.int8())])
def test_a_parquet_prompt_column_of_another_type_is_refused_at_planning(write, type_):
    path = write("p.parquet", to_parquet(pa.table({"prompt": pa.nulls(2, type_)})))
    with pytest.raises(
        ValueError, match=r"p\.parquet: a prompt is text, and the column 'prompt' is of type .*prompt_te"
    ):
        list(plan_units(list_files(path), InputOptions("parquet"), 9))
    filled = InputOptions("parquet", prompt_template="{prompt}")
    assert len(list(plan_units(list_files(path), filled, 9))) == 1


@pytest.mark.parametrize(
    "type_", [pa.large_string(), pa.dictionary(pa.int8(), pa.string()), pa.json_(), pa.null(), pa.binary()]
)
def test_a_parquet_prompt_column_of_any_kind_of_text_is_planned(write, type_):
    path = write("p.parquet", to_parquet(pa.table({"prompt": pa.nulls(2, type_)})))
    assert len(list(plan_units(list_files(path), InputOptions("parquet"), 9))) == 1


@pytest.mark.parametrize(
    ("last", "is_refused"), [(b'{"prompt": 5}', True), (b'{"prompt": "x"}', False), (b"{}", False)]
)
def test_json_lines_are_refused_only_if_none_of_the_first_has_text(write, last, is_refused):
    path = write("p.jsonl", b'{"prompt": 1}\n{broken\n' + last)
    if not is_refused:
        assert len(list(plan_units(list_files(path), InputOptions("jsonl"), 9))) == 1
        return
    with pytest.raises(ValueError, match=r"has no text in the first 2 rows \(the first one has 1\)"):
        list(plan_units(list_files(path), InputOptions("jsonl"), 9))


def test_a_file_that_changed_since_planning_is_refused_before_reading(write):
    path = write("p.txt", b"one\ntwo\n")
    (unit,) = plan_units(list_files(path), InputOptions(format="text"), 5)
    os.utime(path, ns=(1, 1))
    with pytest.raises(ValueError, match=r"p\.txt: the input changed since the run was planned"):
        next(read_unit(unit, InputOptions(format="text"), {}))
    os.remove(path)
    with pytest.raises(ValueError, match=r"p\.txt: the input changed .* the file is gone"):
        next(read_unit(unit, InputOptions(format="text"), {}))


@pytest.mark.parametrize("name", ["p.txt", "p.jsonl", "p.csv", "p.txt.gz"])
def test_an_empty_file_has_no_unit(write, name):
    files = list_files(write(name, gzip.compress(b"") if name.endswith(".gz") else b""))
    assert list(plan_units(files, resolve_options(files, InputOptions()), 5)) == []
    assert list(plan_units(list_files(write("h.csv", b"prompt,b\n")), InputOptions(format="csv"), 5)) == []


@pytest.mark.parametrize(("name", "content"), [("p.parquet", b"PAR1 no"), ("p.txt.gz", b"no gzip")])
def test_a_damaged_file_is_refused_by_name(write, name, content):
    files = list_files(write(name, content))
    with pytest.raises(ValueError, match=f"{name}: cannot be read as"):
        list(plan_units(files, resolve_options(files, InputOptions()), 5))


def test_the_format_is_known_by_the_file_name_and_openai_batches_by_their_first_line(write):
    batch = write("b.jsonl", b'{"custom_id": "1", "url": "/v1/completions", "body": {}}\n')
    assert resolve_options(list_files(batch), InputOptions()).format == "openai_batch"
    plain = write("p.jsonl", b'{"prompt": "1"}\n')
    assert resolve_options(list_files(plain), InputOptions()).format == "jsonl"
    with pytest.raises(ValueError, match="mixes formats"):
        resolve_options(list_files([plain, write("p.csv", b"")]), InputOptions())
    with pytest.raises(ValueError, match="does not tell its format"):
        resolve_options(list_files(write("README.md", b"")), InputOptions())


@pytest.mark.parametrize("name", ["in.jsonl", "in.csv", "in.parquet"])
def test_rows_are_counted_up_to_a_limit(write, name):
    table = to_parquet(pa.table({"prompt": [*"abc"]}))
    content = {"in.jsonl": b'{"prompt": "a"}\n' * 3, "in.csv": b"prompt\na\nb\nc\n", "in.parquet": table}[name]
    files = list_files([write(f"{folder}/{name}", content) for folder in ("one", "two")])
    options = resolve_options(files, InputOptions())
    assert [count_rows(files, options, most) for most in (1, 3, 4, 6, 7)] == [1, 3, 4, 6, 6]


def test_a_unit_of_a_text_file_counts_its_rows_bytes_and_tokens(write):
    (unit,) = plan_units(list_files(write("p.txt", b"one\ntwo\n")), InputOptions(format="text"), 5)
    assert (unit.num_rows, unit.byte_start, unit.byte_end, unit.estimated_tokens) == (2, 0, 8, 2)


def test_half_surrogate_pairs_in_error_rows_are_spelled_out():
    error = RowError("read", "got '\ud800'", kind="Odd\udfff")
    assert (error.message, str(error), error.kind) == ("got '\\ud800'", "got '\\ud800'", "Odd\\udfff")
    rows = [
        RowPosition(0, "p", 0).error(error, "id\udc00"),
        replace(error_of(unit(), 1), id="\ud800", error_type="E\ud800", message="\ud800"),
    ]
    table = errors_table(rows)
    assert table["id"].to_pylist() == ["id\\udc00", "\\ud800"]
    assert table["message"].to_pylist() == ["got '\\ud800'", "\\ud800"]
    assert table["error_type"].to_pylist() == ["Odd\\udfff", "E\\ud800"]


@pytest.mark.parametrize("name", ["p.jsonl.GZ", "p.JSONL.gz", "p.txt.Gz", "p.csv.gZ"])
def test_a_compressed_file_is_known_by_its_name_in_any_case(read, name):
    content = {"j": b'{"prompt": "one"}', "t": b"one", "c": b"prompt\none"}[name[2].lower()]
    assert prompts(read(name, gzip.compress(content))) == ["one"]


@pytest.mark.parametrize(("num_bad", "format_"), [(1, "openai_batch"), (100, "openai_batch"), (101, "jsonl")])
def test_up_to_a_hundred_bad_first_lines_do_not_hide_an_openai_batch(write, num_bad, format_):
    request = b'{"custom_id": "1", "url": "/v1/completions", "body": {}}\n'
    bad = [b"{\n", b"\xff\n", b"[1]\n", b'"x"\n'] * 26
    files = list_files(write("b.jsonl", b"".join(bad[:num_bad]) + request))
    assert resolve_options(files, InputOptions()).format == format_


def test_a_truncated_gzip_file_is_refused_by_name_while_planning(write):
    content = gzip.compress(json.dumps({"prompt": os.urandom(200_000).hex()}).encode())
    files = list_files(write("p.jsonl.gz", content[:100_000]))
    with pytest.raises(ValueError, match=r"p\.jsonl\.gz: cannot be read as jsonl"):
        resolve_options(files, InputOptions())
    with pytest.raises(ValueError, match=r"p\.jsonl\.gz: cannot be read as jsonl"):
        carried_types(files, InputOptions(format="jsonl", carry_columns=("a",)))


def test_a_batch_or_a_table_becomes_rows_and_a_cell_that_is_not_utf8_fails_only_its_row():
    table = pa.table({"prompt": pa.array([b"a", b"\xff", b"c"]).view(pa.string())})
    for rows in (table, table.to_batches()[0]):
        first, bad, last = to_rows(rows)
        assert (first, last) == ({"prompt": "a"}, {"prompt": "c"})
        assert isinstance(bad, RowError)


def test_a_carried_column_of_two_types_in_two_parquet_files_is_refused_naming_both(write):
    tables = {"a": pa.table({"year": [1]}), "b": pa.table({"year": [2]}), "c": pa.table({"year": ["3"]})}
    paths = [write(f"{name}.parquet", to_parquet(table)) for name, table in tables.items()]
    options = InputOptions(format="parquet", carry_columns=("year",))
    assert carried_types(list_files(paths[:2]), options) == {"year": pa.int64()}
    with pytest.raises(ValueError, match=r"'year' is int64 in .*a\.parquet and string in .*c\.parquet"):
        carried_types(list_files(paths), options)


def test_with_named_template_columns_only_the_needed_parquet_columns_are_read(write):
    broken = pa.array([b"\xff"]).view(pa.string())
    needed = {"prompt": ["x"], "sampling": ['{"seed": 1}'], "key": ["k"], "kind": ["c"], "mood": ["glad"], "q": ["why"]}
    path = write("p.parquet", to_parquet(pa.table({**needed, "unrelated": broken})))
    asked = InputOptions(format="parquet", id_column="key", carry_columns=("kind",), template_columns=())

    def columns(options: InputOptions) -> set[str]:
        (unit,) = plan_units(list_files(path), options, 9)
        (row,) = read_unit(unit, options, {name: pa.string() for name in options.carry_columns})
        return set(sound(row).columns)

    assert columns(InputOptions(format="parquet", template_columns=())) == {"prompt", "sampling"}
    assert columns(asked) == {"prompt", "sampling", "key", "kind"}
    assert columns(replace(asked, template_columns=("mood",))) == {"prompt", "sampling", "key", "kind", "mood"}
    assert columns(replace(asked, prompt_template="{q}?")) == {"q", "sampling", "key", "kind"}
    assert columns(replace(asked, override_column="absent")) == {"prompt", "key", "kind"}
    (everything,) = read_all(list_files(path), InputOptions(), 9)
    assert failed(everything).stage == "read"
