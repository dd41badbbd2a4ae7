"""What the recipes of examples/recipes make is what they are for: labels are labels, records parse, pairs differ."""

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pyarrow.parquet as pq
import pytest

from benchmarks.roofline.hardware import describe_machine
from examples.recipes.cookbook import README, ROOT, recipes
from examples.recipes.turns.program import MOST_TURNS
from tests.jobs.runs import generations, problems
from tests.real.conftest import FOLDER

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(900)]
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


def test_thoughts_are_apart_from_answers_and_what_is_kept_is_right(made):
    run = made("distill")
    answers = {row["question"]: row["answer"] for row in rows_of(run, 120)}
    for row in generations(run):
        assert row["content"].isdigit()
        assert row["reasoning"].endswith(".")
        assert not {"<", ">"} & set(row["reasoning"])
    kept = [json.loads(line) for line in (run / "train.jsonl").read_text().splitlines()]
    assert all(answers[each["question"]] == each["content"] for each in kept)
    assert len({each["question"] for each in kept}) >= 15


def test_a_document_drafts_its_own_rewriting_which_keeps_its_facts(made):
    rows = rows_of(made("rewrite"))
    accepted, rounds = (sum(row[f"num_{name}"] for row in rows) for name in ("accepted_tokens", "rounds"))
    assert 1 + accepted / rounds > 1.5  # without drafts 1
    assert sum(row["text"].strip() != row["document"] for row in rows) >= 20
    invented = [len(words(row["text"]) - words(row["document"])) / len(words(row["text"])) for row in rows]
    assert sum(invented) / len(rows) < 0.4
    assert num_nearest_to_their_own(rows, "document") >= 28


def test_translations_are_english_and_most_are_nearest_to_what_a_person_says(made):
    rows = rows_of(made("translate"))
    assert not {row["text"].strip() for row in rows} & {row["french"] for row in rows}
    assert num_nearest_to_their_own(rows, "english") >= 20


def test_each_call_names_a_tool_that_was_offered_and_its_arguments_fulfil_the_schema(made):
    rows = rows_of(made("tools"))
    asked = [json.loads(line) for line in (ROOT / "examples/recipes/tools/input.jsonl").read_text().splitlines()]
    for row, given in zip(rows, asked, strict=True):
        schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in given["tools"]}
        for call in row["tool_calls"]:
            jsonschema.validate(json.loads(call["arguments"]), schemas[call["name"]])
    assert sum(row["tool_calls"][0]["name"] == row["meant"] for row in rows) > 20  # by chance 10


@pytest.mark.ray
def test_a_checker_sends_sentences_back_until_they_have_their_words(made):
    rows = rows_of(made("turns"))
    found = [json.loads(row["result"]) for row in rows]
    assert all(len(row["turns"]) == each["turns"] for row, each in zip(rows, found, strict=True))
    assert all(each["turns"] == MOST_TURNS for each in found if each["missing"])
    at_once = sum(each["turns"] == 1 for each in found)
    assert at_once < sum(not each["missing"] for each in found)


def test_the_best_title_is_the_one_that_makes_its_text_likeliest(made):
    run = made("best_of")
    scores = rows_of(run / "scores", 120)
    best = pq.read_table(run / "best.parquet").to_pylist()
    assert len(best) == 30
    for each in best:
        assert each["logprob"] == max(row["logprob"] for row in scores if row["id"] == each["id"])
    assert len({row["title"] for row in scores}) > 60


def test_the_chosen_of_a_pair_differs_from_the_rejected_and_is_likelier(made):
    run = made("pairs")
    pairs = pq.read_table(run / "pairs.parquet").to_pylist()
    assert len({pair["prompt"] for pair in pairs}) == len(pairs) >= 28
    for pair in pairs:
        assert pair["chosen"] != pair["rejected"]
        assert pair["chosen_perplexity"] < pair["rejected_perplexity"]


def num_nearest_to_their_own(rows: Rows, column: str) -> int:
    """Return how many texts share more of their words with their own row's column than with any other's."""

    def shared(row: dict[str, Any], other: dict[str, Any]) -> float:
        own, its = words(row["text"]), words(other[column])
        return len(own & its) / len(own | its)

    return sum(all(shared(row, row) > shared(row, other) for other in rows if other is not row) for row in rows)


def words(text: str) -> set[str]:
    return set(re.findall(r"[a-z]+", text.lower()))
