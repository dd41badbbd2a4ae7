"""What of trees of drafted tokens is accepted, and what their rounds take: by hand, and for chains by the demo."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from benchmarks.drafts import PAIR, token_ids
from benchmarks.trees import __main__ as command
from benchmarks.trees.texts import Text, written
from benchmarks.trees.tree import Tree
from checks.figures import TREES, read_lines
from checks.tables import noise_table
from decoding import Engine, EngineOptions, SamplingParams
from decoding.pace.cost_table import CostTable
from training.evaluation.kind_score import replay
from training.evaluation.pair import Pair

LINES = Path("examples/prompts.jsonl").read_text().splitlines()


def text_of(*ranks: int) -> Text:
    """Return a text whose tokens have these ranks in any round."""
    token_ids, ranks_KN = tuple(range(10, 10 + len(ranks))), np.full((3, len(ranks)), 9)
    for place in range(3):
        ranks_KN[place, : len(ranks) - place] = ranks[place:]
    replayed = partial(replay, token_ids, max_tokens=99, stop_ids=frozenset(), max_drafted_len=99)
    return Text(token_ids, ranks_KN, ranks_KN, replayed)


@pytest.mark.parametrize(
    ("tree", "ranks", "accepted_per_position"),
    [
        (Tree(3), (0, 1, 0, 0, 2, 0), (3, 1, 0)),
        (Tree(3, 1), (0, 1, 2, 0), (2, 0, 0)),  # the second best token is not at the first place
        (Tree(3, 2), (0, 1, 2, 0), (2, 1, 0)),
        (Tree(3, 2), (0, 1, 0, 0, 2, 0), (3, 1, 0)),  # nothing is behind the sibling
        (Tree(3, 2, True), (0, 1, 0, 0, 2, 0), (2, 1, 1)),  # the third token comes from the sibling's own chain
        (Tree(3, 2, True), (1, 1, 0), (2, 0, 0)),  # behind a sibling there is no second one
        (Tree(3, 1), (1, 0, 0, 0), (2, 1, 0)),
        (Tree(3, 1, True), (1, 0, 0, 0), (1, 1, 1)),
        (Tree(3), (1, 0, 0, 0), (1, 1, 1)),
        (Tree(0), (0, 0), ()),
    ],
)
def test_a_tree_has_the_second_best_tokens_at_its_first_places(tree, ranks, accepted_per_position):
    assert text_of(*ranks).rounds(tree).accepted_per_position == accepted_per_position


def test_a_tree_pays_for_its_tokens_and_its_drafts_wider_steps():
    costs = CostTable(((1, 1.0), (2, 2.0)), ((1, 10.0), (2, 20.0)), round_seconds=100.0, position_seconds=1000.0)
    assert Tree(3).seconds(costs, 2) == pytest.approx(costs.of_round(2, 3))
    assert Tree(0).seconds(costs, 2) == pytest.approx(costs.of_round(2, 0))
    assert (Tree(3, 2).num_tokens, Tree(3, 2, True).num_tokens) == (5, 8)
    assert Tree(3, 2).seconds(costs, 2) == 2 * 6 + 10 * 6 + 100 + 1000 * (12 + 6)
    assert Tree(3, 2, True).seconds(costs, 2) == 2 * 9 + 10 * (2 + 4 + 6) + 100 + 1000 * (18 + 12)


@pytest.mark.parametrize(("draft", "name"), [("draft", "draft model"), ("head", "EAGLE-3 head")])
def test_the_rounds_of_a_chain_are_those_of_the_demo(draft, name):
    some = LINES[:5]
    pair = Pair(str(PAIR / draft), str(PAIR / "target"), "cpu", "float32")
    engine = Engine.over(pair.parts.beside(), EngineOptions(drafter="none", max_model_len=512))
    prompts = [token_ids(AutoTokenizer.from_pretrained(PAIR / "target"), line) for line in some]
    examples = written(engine, prompts, SamplingParams(temperature=0.8, max_tokens=200))
    demo = {line["id"]: line for line in read_lines(name)}
    for line, example in zip(some, examples, strict=True):
        text, expected = Text.read(pair, example, 4), demo[json.loads(line)["id"]]
        found = text.rounds(Tree(4))
        assert (found.num_output_tokens, found.num_rounds) == (
            int(expected["num_output_tokens"]),
            int(expected["num_rounds"]),
        )
        assert list(found.accepted_per_position) == [int(each) for each in expected["accepted_per_position"].split()]


def test_the_command_prints_and_keeps_what_it_found(tmp_path, capsys):
    few = ["--one-in", "150", "--batches", "1", "--new-tokens", "24", "--most", "4", "--temperatures", "0,1"]
    command.main([*few, "--json", str(tmp_path / "found.json")])
    found, recorded = json.loads((tmp_path / "found.json").read_text()), json.loads(TREES.read_text())
    assert [line["kind"] for line in found["lengths"]] == [line["kind"] for line in recorded["lengths"][:7]] * 4
    assert all(line["free_times_chain"] >= line["tree_times_chain"] > 0 for line in found["speeds"])
    assert {line["temperature"] for line in found["noise"]} == {1.0}
    assert "\n| head | 1 | " in noise_table(found)
    assert "3 siblings with chains" in capsys.readouterr().out
