"""What the README shows is run."""

import re
from pathlib import Path

import duckdb
import pytest
import yaml

from jobs.config.run import load_config

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_the_yaml_example_is_a_valid_configuration(tmp_path: Path) -> None:
    (example,) = _blocks("yaml")
    path = tmp_path / "run.yaml"
    path.write_text(example)
    config = load_config([f"--config={path}"], prog="test")
    assert config.generator.models.target == yaml.safe_load(example)["models"]["target"]


@pytest.mark.ray
def test_the_python_examples_run(text_pair: tuple[str, str], ray_address: str) -> None:
    engine_example, dataset_example, _ = _blocks("python")  # the last: tests/endpoint/test_documented.py
    names: dict[str, object] = {}
    exec(engine_example.replace("path/to/target", text_pair[0]).replace("path/to/draft", text_pair[1]), names)
    for path in text_pair:
        dataset_example = dataset_example.replace('"..."', repr(path), 1)
    exec(dataset_example, names)
    (row,) = names["rows"].take_all()  # type: ignore[attr-defined]
    assert row["num_output_tokens"] == len(row["token_ids"])


@pytest.mark.ray
def test_the_duckdb_query_runs_on_a_run(plain_run: Path) -> None:
    (query,) = re.findall(r'duckdb\.sql\(\\"\\"\\"(.*?)\\"\\"\\"\)', README, flags=re.DOTALL)
    rows = duckdb.sql(query.replace("out/demo", str(plain_run / "out"))).fetchall()
    assert [row[0] for row in rows] == ["b", "c", "chat"]
