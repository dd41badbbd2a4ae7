"""Counting rows before units are planned."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.inputs.files import list_files
from pipeline.inputs.options import InputOptions, resolve_options
from pipeline.inputs.units import count_rows


@pytest.mark.parametrize("name", ["in.jsonl", "in.csv", "in.parquet"])
def test_rows_are_counted_up_to_a_limit(name: str, tmp_path: Path) -> None:
    for folder in ("one", "two"):
        table = pa.table({"prompt": ["a", "b", "c"]})
        path = tmp_path / folder / name
        path.parent.mkdir()
        if name == "in.parquet":
            pq.write_table(table, path)
        else:
            lines = ['{"prompt": "a"}\n'] * 3 if name == "in.jsonl" else ["prompt\n", "a\n", "b\n", "c\n"]
            path.write_text("".join(lines))
    files = list_files(str(tmp_path))
    options = resolve_options(files, InputOptions())
    assert [count_rows(files, options, most) for most in (1, 3, 4, 6, 7)] == [1, 3, 4, 6, 6]
