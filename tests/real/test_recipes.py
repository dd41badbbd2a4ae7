"""What the recipes of examples/recipes make: labels are labels, records parse, and an evaluation beats chance."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from benchmarks.roofline.hardware import describe_machine
from examples.recipes.cookbook import README, ROOT, recipes
from tests.jobs.runs import generations, problems
from tests.real.conftest import FOLDER

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]
Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Run a recipe in a folder of its own; what README.md shows of it is what it prints. Return its output."""
    folder = tmp_path_factory.mktemp("cookbook")
    (folder / "examples").symlink_to(ROOT / "examples")
    (folder / ".real-models").symlink_to(FOLDER)

    @cache
    def run(name: str) -> Path:
        recipe = recipes()[name]
        printed = recipe.run(folder)
        if describe_machine()["processor"] in README.read_text():
            assert printed == list(recipe.shown), f"python -m examples.recipes.cookbook --write {name}"
        else:  # where two tokens nearly tie, another processor may round otherwise
            assert len(set(printed) & set(recipe.shown)) >= len(printed) / 2
        return folder / "out/recipes" / name

    return run


def rows_of(run: Path, num_rows: int = 30) -> Rows:
    """Return the rows of a complete run, none of which has failed."""
    rows = generations(run)
    assert (len(rows), problems(run), list(run.glob("errors/*.parquet"))) == (num_rows, [], [])
    return rows


def test_labels_are_labels_and_mostly_those_of_people(made):
    rows = rows_of(made("labels"))
    assert {row["text"] for row in rows} == {" positive", " negative"}
    assert sum(row["text"].strip() == row["label"] for row in rows) >= 24


def test_records_parse_and_most_of_their_fields_are_those_of_the_sentence(made):
    rows = rows_of(made("records"))
    found = [json.loads(row["text"]) for row in rows]
    assert {tuple(record) for record in found} == {("name", "age", "city")}
    for name in ("name", "age", "city"):
        assert sum(record[name] == row[name] for record, row in zip(found, rows, strict=True)) >= 20, name


def test_an_evaluation_gives_each_answer_a_share_and_is_far_better_than_chance(made):
    rows = rows_of(made("evaluate"), 32)
    for row in rows:
        shares = row["candidate_probabilities"]
        assert sum(shares) == pytest.approx(1)
        assert row["candidate"] == shares.index(max(shares))
    accuracy = sum(row["text"].strip(" .") == row["answer"] for row in rows) / len(rows)
    assert 0.6 < accuracy <= 1
