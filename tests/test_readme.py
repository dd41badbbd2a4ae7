"""The examples in README.md run, and the figures in README.md are those of the demo."""

import json
import re
from pathlib import Path

import duckdb
import pytest
import yaml

from checks import answers, figures
from jobs.config.loading import load
from jobs.config.run import RunConfig

ROOT = Path(__file__).parents[1]
README, RUNNING = (ROOT / "README.md").read_text(), (ROOT / "docs/running.md").read_text()


def _blocks(language: str, document: str = "README.md") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / document).read_text(), flags=re.DOTALL)


def test_the_readme_is_short_enough_to_scan() -> None:
    assert len(README.splitlines()) <= 60


def test_the_table_of_the_demo_is_the_sum_of_its_lines(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert figures.main([]) == 0
    stale = tmp_path / "README.md"
    stale.write_text(README.replace("| 60 | 5,285 | 3.89 |", "| 60 | 5,415 | 3.89 |"))
    assert stale.read_text() != README
    monkeypatch.setattr(figures, "README", stale)
    assert figures.main([]) == 1
    assert "python -m checks.figures out/demo" in capsys.readouterr().err


def test_a_stale_answer_of_a_real_model_is_noticed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answers.main([]) == 0
    facts = {"machine": {"processor": "P"}, "dtype": "float32", "num_answers": 40, "num_tokens": 1, "cpu_seconds": 1}
    another = tmp_path / "answer.json"
    another.write_text(json.dumps(facts | {"question": "Another one?", "answer": "No."}))
    monkeypatch.setattr(answers, "ANSWER", another)
    assert answers.main([]) == 1
    assert "checks.answers --write writes both" in capsys.readouterr().err


def test_the_metrics_of_a_demo_are_the_sum_of_its_lines() -> None:
    text = (ROOT / "docs/metrics.md").read_text()
    lines = figures.read_lines()
    columns = {"output": "num_output", "draft": "num_draft", "accepted": "num_accepted"}
    for metric, column in columns.items():
        (shown,) = re.findall(rf"ray_dray_{metric}_tokens_total{{.*}} (\S+)", text)
        assert float(shown) == sum(int(line[f"{column}_tokens"]) for line in lines), metric


def test_the_yaml_example_is_a_valid_configuration(tmp_path: Path) -> None:
    (example,) = _blocks("yaml")
    path = tmp_path / "run.yaml"
    path.write_text(example)
    config = load(RunConfig, [f"--config={path}"], prog="test")
    assert config.generator.models.target == yaml.safe_load(example)["models"]["target"]


@pytest.mark.ray
def test_the_duckdb_query_runs_on_a_run(plain_run: Path) -> None:
    (query,) = re.findall(r'duckdb\.sql\(\\"\\"\\"(.*?)\\"\\"\\"\)', RUNNING, flags=re.DOTALL)
    rows = duckdb.sql(query.replace("out/demo", str(plain_run / "out"))).fetchall()
    assert [row[0] for row in rows] == ["b", "c", "chat"]
