"""Fields are set in a YAML file without a change of anything else."""

import pytest
import yaml

from jobs.work.tuning.yaml_file import with_fields

TEXT = """\
# mine
input: {path: in.jsonl}   # forty questions
engine:   # slots by trial
  # by hand
  num_slots: 16   # enough
  exact: auto
models: {target: t}
"""
FIELDS = {"engine.num_slots": 32, "engine.drafter": "none", "models.draft": "a: b", "actors.num_cpus": 2}


def test_comments_and_all_other_fields_stay():
    text = with_fields(TEXT, FIELDS)
    assert yaml.safe_load(text) == {
        "input": {"path": "in.jsonl"},
        "engine": {"num_slots": 32, "exact": "auto", "drafter": "none"},
        "models": {"target": "t", "draft": "a: b"},
        "actors": {"num_cpus": 2},
    }
    kept = [line for line in TEXT.splitlines() if "num_slots" not in line and "target" not in line]
    assert [line for line in text.splitlines() if line in kept] == kept
    assert "  num_slots: 32   # enough\n" in text
    assert with_fields(text, FIELDS) == text, "what is set already stays"


@pytest.mark.parametrize("text", ["", "engine:\n", "engine:", "engine: {}\n", "models: {target: t}"])
def test_a_section_that_is_empty_or_not_there_gets_the_field(text):
    assert yaml.safe_load(with_fields(text, {"engine.drafter": "suffix"}))["engine"] == {"drafter": "suffix"}


def test_a_section_that_another_one_shares_is_refused():
    with pytest.raises(ValueError, match="aliases or the like"):
        with_fields("engine: &own {num_slots: 16}\ntraining: *own\n", {"engine.num_slots": 8})
