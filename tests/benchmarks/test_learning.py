"""What a draft and a head learn on the bundled pair can be measured."""

import json

import pytest

from benchmarks import learning


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(1200)
def test_the_benchmark_trains_scores_and_times_and_uses_its_folders_again(tmp_path, capsys):
    few = ["--out", str(tmp_path / "learning"), "--per-kind", "4", "--repeats", "1"]
    short = [
        "--train-draft=--train.max_steps 2",
        "--train-head=--models.draft examples/tiny_pair/head --train.max_steps 2",
    ]
    for _ in range(2):
        learning.main([*few, *short, "--json", str(tmp_path / "found.json")])
        found = json.loads((tmp_path / "found.json").read_text())
        assert {line["draft"] for line in found["lines"]} == {"before", "draft", "head"}
        assert {line["draft"] for line in found["speeds"]} == {"none", "before", "draft", "head"}
    assert "tokens/s" in capsys.readouterr().out
