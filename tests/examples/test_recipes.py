"""The recipes in examples/recipes, over a run of the bundled pair's prompts that is small and real."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from examples.recipes import dedup, iceberg, vllm_serve
from pipeline.run.directory import RunDirectory
from tests.pipeline.made_up import RUN, commit_rows, generation, unit

STORY = (
    "Nadia bought six apples at the market and walked home along the river before it began to rain. Her brother had "
    "promised soup, yet nobody could find a pot, so they sent Emil across the street, where old Mrs Harker kept every "
    "kettle that this town ever owned. He came back with two ladles, one lid, and news about a missing bicycle."
)
LIGHTHOUSE = (
    "For thirty winters the keeper counted ships that passed his tower. One evening, while snow fell sideways, a boat "
    "without sails drew near; its captain asked only for thread and some matches. Years later, people still argue "
    "whether she existed, although her button lies framed above our fireplace, tarnished but unmistakably foreign."
)
TEXTS = [STORY, f"{STORY} Indeed.", LIGHTHOUSE, "too short", "again and " * 60]


@pytest.fixture
def run(tmp_path: Path) -> str:
    """A complete run of two units with these texts."""
    identity = {**RUN["identity"], "sampling": {"temperature": 0.8}, "seed": 7}
    models = {"target": "models/target", "draft": None, "tokenizer": None}
    facts = {**RUN, "identity": identity, "models": models, "exact": "proved"}
    directory = RunDirectory.create(str(tmp_path / "run"), facts, [unit(0), unit(1)])
    for number in range(2):
        each = unit(number)
        rows = [
            generation(each.row_id(index), text=TEXTS[(number * each.num_rows + index) % len(TEXTS)])
            for index in range(each.num_rows)
        ]
        commit_rows(directory, each, rows, [])
    return str(tmp_path / "run")


def test_near_duplicates_short_texts_and_repetitions_are_dropped(run, tmp_path):
    texts = [
        row["text"] for part in sorted(Path(run).glob("data/*.parquet")) for row in pq.read_table(part).to_pylist()
    ]
    dedup.drop_near_duplicates(run, tmp_path / "clean")
    kept = [row for file in (tmp_path / "clean/kept").glob("*.parquet") for row in pq.read_table(file).to_pylist()]
    assert {row["text"] for row in kept} <= set(texts)
    assert [text for text in (STORY, LIGHTHOUSE) if not any(row["text"].startswith(text) for row in kept)] == []
    assert len(kept) == 2
    assert all(row["id"].endswith("-0") for row in kept)


def test_committed_parts_are_added_to_an_iceberg_table_once(run, tmp_path):
    second = sorted(Path(run).glob("data/*.parquet"))[1]
    second.rename(tmp_path / "later")
    catalog = iceberg.catalog_in(tmp_path / "lake")
    table, num_new = iceberg.add_parts(run, catalog)
    assert num_new == 1
    (tmp_path / "later").rename(second)
    table, num_new = iceberg.add_parts(run, catalog)
    assert num_new == 1
    assert iceberg.add_parts(run, catalog)[1] == 0
    texts = [row["text"] for part in Path(run).glob("data/*.parquet") for row in pq.read_table(part).to_pylist()]
    assert sorted(table.scan().to_arrow()["text"].to_pylist()) == sorted(texts)


def test_vllm_is_told_which_kind_of_draft_it_gets():
    pair = "examples/tiny_pair"
    *words, config = vllm_serve.command(f"{pair}/target", f"{pair}/head")
    assert words == ["vllm", "serve", f"{pair}/target", "--speculative-config"]
    assert json.loads(config) == {"method": "eagle3", "model": f"{pair}/head", "num_speculative_tokens": 4}
    assert json.loads(vllm_serve.command("t", f"{pair}/draft")[-1])["method"] == "draft_model"
