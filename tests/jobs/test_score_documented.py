"""The example of docs/scoring.md runs as it stands there."""

import re
from pathlib import Path

import pytest

from jobs import generate
from tests.jobs.runs import generations, problems

ROOT = Path(__file__).parents[2]


def test_the_documents_example_names_the_likeliest_label_of_each_row(tmp_path):
    document = (ROOT / "docs/scoring.md").read_text()
    (config,) = re.findall(r"```yaml\n(.*?)```", document, re.DOTALL)
    (rows,) = re.findall(r"```json\n(.*?)```", document, re.DOTALL)
    (tmp_path / "score.yaml").write_text(config.replace("examples/", f"{ROOT}/examples/"))
    (tmp_path / "judged.jsonl").write_text(rows)
    places = [f"--input.path={tmp_path / 'judged.jsonl'}", f"--output.path={tmp_path / 'out'}"]
    flags = [*places, "--run.local", "--run.progress=none"]
    assert generate.main([f"--config={tmp_path / 'score.yaml'}", *flags]) == 0
    found = generations(tmp_path / "out")
    assert [row["id"] for row in found] == ["a", "b"]
    for row in found:
        assert row["text"] == (" yes", " no")[row["candidate"]]
        assert sum(row["candidate_probabilities"]) == pytest.approx(1)
        assert row["probability"] == max(row["candidate_probabilities"])
    assert not problems(tmp_path / "out")
