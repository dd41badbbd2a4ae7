"""The examples of docs/python.md and docs/pipelines.md, and the notebook, run as they are."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import dray
from tests.dray.conftest import DRAFT, TARGET

ROOT = Path(__file__).parents[2]


def _run_blocks(page: str, **places: str) -> dict[str, Any]:
    """Run the Python of a page, with other places in it, and return what it has defined."""
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL):
        for place, other in {"path/to/target": TARGET, "path/to/draft": DRAFT, **places}.items():
            block = block.replace(f'"{place}"', repr(other))
        exec(block, names)
    return names


def test_the_examples_of_the_page_run(plain_run, tmp_path, capsys):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "Once"}\n{"prompt": "The fox"}\n')
    places = {"questions.jsonl": str(tmp_path / "rows.jsonl"), "out/demo": str(plain_run / "out")}
    names = _run_blocks("docs/python.md", **places)
    assert names["corpus"].count_rows() == 30
    assert {line.split()[0] for line in capsys.readouterr().out.splitlines() if line[:1].isdigit()} >= {"0", "1"}


@pytest.mark.filterwarnings("ignore:1 of 2 rows failed")
def test_the_notebook_runs(monkeypatch, capsys):
    monkeypatch.chdir(ROOT / "examples")
    names: dict[str, Any] = {}
    for cell in json.loads((ROOT / "examples/notebook.ipynb").read_text())["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            exec("".join(cell["source"]), names)
    assert names["table"]["sample"].to_pylist() == [0, 1, 0, 1]
    assert [message is None for message in names["answers"]["error_message"].to_pylist()] == [True, False]
    assert len(capsys.readouterr().out.splitlines()) == 3


@pytest.mark.ray
@pytest.mark.usefixtures("ray_address")
def test_a_dataset_becomes_a_dataset_with_the_columns_of_a_table(model):
    (row,) = _run_blocks("docs/pipelines.md")["rows"].take_all()
    assert row["num_output_tokens"] == len(row["token_ids"]) > 0
    assert list(row) == dray.generate(["Once"], model, max_tokens=1).column_names
