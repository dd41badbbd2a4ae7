"""What a model's generation_config.json says of sampling is named in the plan, and followed where that is asked for."""

import json
import shutil
from pathlib import Path

import pytest

from decoding import SamplingParams
from jobs.config.loading import load
from jobs.config.run import RunConfig
from jobs.driver.plan import make_plan
from jobs.work.plan_text import print_plan
from tests.jobs.runs import arguments, prompts, write_jsonl

SAID = {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "repetition_penalty": 1.1, "no_repeat_ngram_size": 3}


@pytest.fixture
def command(tmp_path: Path, text_pair: tuple[str, str]) -> list[str]:
    """Return the command line of a run with a model whose file says SAID."""
    target = tmp_path / "target"
    shutil.copytree(text_pair[0], target)
    (target / "generation_config.json").write_text(json.dumps(SAID))
    write_jsonl(tmp_path / "in.jsonl", prompts(3))
    return arguments(tmp_path / "in.jsonl", tmp_path / "out", (str(target), text_pair[1]))


def sampling(command: list[str], *flags: str) -> SamplingParams:
    return make_plan(load(RunConfig, [*command, *flags], prog="test")).settings.sampling


def printed_plan(command: list[str], capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    print_plan(make_plan(load(RunConfig, [*command, *flags], prog="test")))
    return " ".join(capsys.readouterr().out.split())


def test_the_file_changes_no_text_unless_that_is_asked_for(command):
    assert sampling(command) == SamplingParams(max_tokens=12)


def test_what_the_file_says_is_taken_where_the_configuration_says_nothing(command):
    taken = sampling(command, "--sampling.from_model", "--sampling.temperature=1.0")
    assert taken == SamplingParams(max_tokens=12, temperature=1.0, top_p=0.95, top_k=50, repetition_penalty=1.1)


def test_a_model_without_the_file_says_nothing_that_could_be_taken(command):
    target = Path(next(word for word in command if "models.target" in word).partition("=")[2])
    (target / "generation_config.json").unlink()
    with pytest.raises(ValueError, match=r"has no generation_config\.json"):
        sampling(command, "--sampling.from_model")


def test_a_file_that_does_not_ask_for_samples_means_greedy_texts_as_for_generate(command):
    target = Path(next(word for word in command if "models.target" in word).partition("=")[2])
    (target / "generation_config.json").write_text(json.dumps({"eos_token_id": 2, "temperature": 0.6}))
    assert sampling(command, "--sampling.from_model") == SamplingParams(max_tokens=12, temperature=0.0)


def test_what_cannot_be_sampled_is_refused_with_the_name_of_the_file(command):
    target = Path(next(word for word in command if "models.target" in word).partition("=")[2])
    (target / "generation_config.json").write_text(json.dumps({"do_sample": True, "min_new_tokens": 50}))
    with pytest.raises(ValueError, match=r"(?s)takes .*50.* from generation_config.json: .*min_tokens"):
        sampling(command, "--sampling.from_model")


def test_the_plan_names_what_the_run_does_not_follow(command, capsys):
    without = printed_plan(command, capsys)
    for said in ("temperature 0.6", "top_p 0.95", "repetition_penalty 1.1", "no_repeat_ngram_size 3"):
        assert said in without.partition("not applied of the model's generation_config.json:")[2]
    following = printed_plan(command, capsys, "--sampling.from_model")
    assert "not applied of the model's generation_config.json: no_repeat_ngram_size 3 engine" in following
    assert "temperature 0.6" in following, "the plan says what is taken"
