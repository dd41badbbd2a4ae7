"""What a draft and a head learned on the bundled pair, as it was measured, and that it can be measured again."""

import json

import pytest

from benchmarks import learning
from checks.figures import LEARNED

RECORDED = json.loads(LEARNED.read_text())
LENGTHS = {(line["draft"], line["kind"]): line["live_length"] for line in RECORDED["lines"]}
KINDS = sorted({line["kind"] for line in RECORDED["lines"]})


@pytest.mark.parametrize("kind", KINDS)
def test_a_draft_wrote_a_quarter_more_tokens_a_round_after_it_learned(kind):
    assert LENGTHS["draft", kind] >= 1.25 * LENGTHS["before", kind]


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_came_near_the_draft_that_learned_from_the_same_texts(kind):
    assert LENGTHS["head", kind] >= 0.8 * LENGTHS["draft", kind]


@pytest.mark.parametrize("line", RECORDED["lines"], ids=lambda line: f"{line['draft']}-{line['kind']}")
def test_what_was_predicted_of_a_draft_came_true(line):
    assert line["predicted_rate"] == pytest.approx(line["live_rate"], abs=0.05)
    assert line["predicted_length"] == pytest.approx(line["live_length"], abs=0.1)


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
