"""Fields are set in a YAML file without a change of anything else."""

from pathlib import Path

import pytest
import yaml

from jobs.work.tuning.yaml_file import TunedFile

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


def with_fields(text, fields):
    return TunedFile(Path("run.yaml"), text).with_fields(fields)


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


@pytest.mark.parametrize(
    "text", ["", "engine:\n", "engine:", "engine: {}\n", "models: {target: t}", "{}", "{models: {target: t}}"]
)
def test_a_section_that_is_empty_or_not_there_gets_the_field(text):
    assert yaml.safe_load(with_fields(text, {"engine.drafter": "suffix"}))["engine"] == {"drafter": "suffix"}


@pytest.mark.parametrize(
    "text",
    [
        "engine: &own {num_slots: 16}\ntraining: *own\n",
        "engine: {num_slots: &n 16, num_speculative_tokens: *n}\n",
        "engine: {num_slots: 16\n",
        "- engine\n",
        "engine: fast\n",
    ],
)
def test_a_file_that_cannot_be_edited_is_refused_by_its_name(text):
    with pytest.raises(ValueError, match=r"run.yaml cannot get engine.num_slots: it has aliases there, or is no YAML"):
        with_fields(text, {"engine.num_slots": 8})
