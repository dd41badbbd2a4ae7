"""A run of one line: what is chosen on this machine, what is not, and the file that says the same."""

import json
from pathlib import Path

import pytest
import torch

from decoding.fused.kernels import linear_kind
from decoding.network.invariance import is_invariant_on_cpu
from decoding.network.language_model import LanguageModel
from jobs import generate, init
from jobs.config.loading import load
from jobs.config.one_line import load_run
from jobs.config.run import GenerateConfig
from jobs.driver.chosen import chosen_here
from jobs.driver.plan import make_plan
from tests.jobs.runs import content, prompts, write_jsonl

PAIR = Path(__file__).parents[2] / "examples/tiny_pair"


@pytest.fixture
def line(tmp_path, monkeypatch):
    """The words of a small run, in an empty folder, which is the working directory; Ray must not start."""

    def start(*_: object) -> None:
        raise AssertionError("Ray was started")

    monkeypatch.setattr("jobs.driver.execution.start_ray", start)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "questions.jsonl", [row for row in prompts(12) if "prompt" in row])
    return ["questions.jsonl", "out", "--model", str(PAIR / "target"), "--max-tokens=12", "--temperature=0.8"]


def config_of(*words: str) -> GenerateConfig:
    return chosen_here(load_run(GenerateConfig, words, "dray generate"))


def test_a_line_becomes_a_corpus_without_ray_and_the_file_of_the_plan_writes_the_same(line, capsys):
    assert generate.main([*line, "--dry-run"]) == 0
    plan = capsys.readouterr().out
    assert "run.local true: one engine needs no Ray" in plan
    yaml = plan.partition("this line as a file")[2].partition("\n")[2]
    Path("run.yaml").write_text(yaml)
    assert generate.main(line) == 0
    assert generate.main(["--config=run.yaml", "--output.path=again"]) == 0
    assert content(Path("out")) == content(Path("again"))
    assert json.loads(Path("out/report.json").read_text())["exact"] in ("proved", "batch-invariant")
    assert load(GenerateConfig, ["--config=run.yaml"], "test") == config_of(*line)


def test_init_writes_the_file_of_the_plan_and_none_over_another(line, capsys):
    assert init.main(line) == 0
    assert "wrote run.yaml" in capsys.readouterr().out
    assert load(GenerateConfig, ["--config=run.yaml"], "test") == config_of(*line)
    assert init.main(line) == 2
    assert "run.yaml is there already; name another file" in capsys.readouterr().err


def test_what_is_given_is_not_chosen(line):
    given = ("--models.dtype=float32", "--engine.drafter=ngram", "--no-run.local")
    config = config_of(*line, *given)
    assert (config.chosen, config.generator.models.dtype, config.run.local) == ({}, "float32", False)
    assert config_of(*line, "--draft", str(PAIR / "draft")).generator.engine.drafter is None
    assert config_of(*line, "--engine.verification=rejection").generator.engine.drafter is None
    assert not config_of(*line, "--actors.max_actors=2").run.local
    assert config_of(*line, "--run.ray_address=local").run.local is False


def test_the_plan_says_how_rows_are_named_by_a_column_id(line, capsys):
    said = "--input.id_column=id names rows by it"
    assert generate.main([*line, "--dry-run"]) == 0
    assert said in capsys.readouterr().out
    assert generate.main([*line, "--dry-run", "--input.id_column=id"]) == 0
    assert said not in capsys.readouterr().out


def test_a_run_keeps_the_type_of_numbers_that_it_has_begun_with(line, monkeypatch):
    assert generate.main(line) == 0
    begun = config_of(*line).generator.models.dtype
    other = {"bfloat16": "float32", "float32": "bfloat16"}[begun]
    monkeypatch.setattr("decoding.network.invariance.is_invariant_on_cpu", lambda *_: other == "bfloat16")
    assert make_plan(load_run(GenerateConfig, line, "dray generate")).settings.models.dtype == begun


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_said_of_a_model_before_it_is_loaded_is_so_when_it_is_loaded(dtype):
    model = LanguageModel.load(str(PAIR / "target"), dtype=dtype)
    model.speed_up()
    assert is_invariant_on_cpu(model.network.config, getattr(torch, dtype)) == model.is_batch_invariant


def test_a_model_in_which_nothing_is_exact_but_float32_gets_float32(line, monkeypatch):
    chosen = config_of(*line)
    wanted = "bfloat16" if linear_kind(torch.bfloat16) else "float32"
    assert chosen.generator.models.dtype == wanted
    monkeypatch.setenv("DRAY_KERNELS", "off")
    assert config_of(*line).generator.models.dtype == "float32"
