"""The bundled prompts are what their script prints."""

import json
from pathlib import Path

import pytest

from examples.tiny_pair.prompts import prompt_rows

BUNDLED = Path(__file__).parents[2] / "examples/prompts.jsonl"


def test_the_script_prints_the_bundled_prompts():
    lines = [json.dumps(row, ensure_ascii=False) for row in prompt_rows()]
    assert lines == BUNDLED.read_text().splitlines()


def test_another_seed_gives_other_prompts_with_ids_of_their_own():
    bundled = {row["id"] for row in prompt_rows()}
    others = prompt_rows("more", per_kind=4)
    assert len(others) == 20
    assert not bundled & {row["id"] for row in others}


def test_more_prompts_than_there_are_of_a_kind_are_refused():
    with pytest.raises(ValueError, match=r"hardly more than 1\d\d prompts of the kind 'json'; ask for fewer"):
        prompt_rows("more", per_kind=250)
