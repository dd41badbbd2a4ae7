"""The recipes of examples/recipes/README.md, without their model: the bundled pair's tokenizer reads their inputs."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from decoding.heads.format.folder import read_head, save_head
from examples import demo_real
from examples.recipes import sql
from examples.recipes.cookbook import README, ROOT, recipes, with_table
from jobs.config.loading import load
from jobs.config.run import GenerateConfig, RunConfig
from jobs.driver.plan import make_plan
from jobs.work.input_check import check_input
from pipeline.inputs.units import BYTES_PER_TOKEN

FOLDER = README.parent
CONFIGS = sorted(FOLDER.glob("*/*.yaml"))
READS_AN_INPUT = [path for path in CONFIGS if "  path: examples/" in path.read_text()]  # others read an earlier step


def test_each_folder_is_a_recipe_whose_commands_name_all_of_its_files() -> None:
    commands = {name: " ".join(recipe.commands) for name, recipe in recipes().items()}
    assert sorted(commands) == sorted({path.parent.name for path in CONFIGS})
    for name in commands:
        named = commands[name] + "".join(path.read_text() for path in FOLDER.glob(f"{name}/*.yaml"))
        for path in (FOLDER / name).glob("*.*"):
            file = path.relative_to(ROOT)
            assert str(file) in named or ".".join(file.with_suffix("").parts) in named, file


@pytest.mark.parametrize("path", READS_AN_INPUT, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_row_of_a_recipe_can_be_asked(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    own = [f"--output.path={tmp_path / 'out'}", "--models.target=examples/tiny_pair/target", "--models.device=cpu"]
    config = load(RunConfig, [f"--config={path}", *own], prog="test")
    plan = make_plan(config)
    units = list(plan.new_units())
    num_rows, num_tokens = (sum(getattr(unit, name) for unit in units) for name in ("num_rows", "estimated_tokens"))
    check = check_input(plan, units, num_rows, num_tokens * BYTES_PER_TOKEN)
    assert [each for each in check.errors if "the context is 512" not in each.message] == []  # SmolLM2's is 8,192
    assert check.repeated_ids == {}
    assert check.num_rows >= 30


def test_what_the_readme_shows_is_of_the_inputs() -> None:
    for recipe in recipes().values():
        ids = {
            json.loads(line)["id"] for path in FOLDER.glob("*/input.jsonl") for line in path.read_text().splitlines()
        }
        assert {shown["id"] for shown in map(json.loads, recipe.shown) if "id" in shown} <= ids, recipe.name


def test_sql_prints_a_json_line_for_each_row_of_each_statement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "look.sql"
    file.write_text(
        f"create view pair as select unnest([1, 2]) as a, 'é' as b;"
        f"copy (from pair) to '{tmp_path / 'some.parquet'}'; from '{tmp_path / 'some.parquet'}'; select 0.25 as c;"
    )
    sql.main(str(file))
    assert capsys.readouterr().out == '{"a": 1, "b": "é"}\n{"a": 2, "b": "é"}\n{"c": 0.25}\n'


def test_the_table_of_the_readme_has_what_its_recipes_show() -> None:
    text = README.read_text()
    assert with_table(text) == text, "python -m examples.recipes.cookbook --table"
    assert text.count("\n| [") == len(recipes()) == 10


def test_the_demo_leaves_out_a_head_that_agrees_too_seldom(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pair = ROOT / "examples/tiny_pair"
    head = read_head(str(pair / "head"))
    assert head.config.kind == "eagle3"
    noise = {name: torch.randn_like(each) if each.is_floating_point() else each for name, each in head.tensors.items()}
    save_head(replace(head, tensors=noise), str(tmp_path / "head"), "speculators")
    config, found = tmp_path / "own.yaml", tmp_path / "found.yaml"
    config.write_text(
        f"input: {{path: {ROOT / 'examples/prompts.jsonl'}}}\noutput: {{path: {tmp_path / 'out'}}}\n"
        f"models: {{target: {pair / 'target'}, device: cpu}}\nsampling: {{max_tokens: 16}}\nrun: {{local: true}}\n"
    )
    flags = demo_real.fastest(str(config), tmp_path / "head", found, seconds=1)
    assert re.search(r"left out: \S*head: .*expected at least 15%", " ".join(capfd.readouterr().out.split()))
    chosen = load(GenerateConfig, flags, prog="test").generator
    assert chosen.models.draft is None
    assert chosen.engine.drafter in ("ngram", "suffix")


def test_the_demo_asks_40_questions_that_no_lesson_asks() -> None:
    asked = [json.loads(line)["prompt"] for line in (ROOT / demo_real.QUESTIONS).read_text().splitlines()]
    assert len(set(asked)) == 40
    assert not set(demo_real.lesson_texts()) & set(asked)
