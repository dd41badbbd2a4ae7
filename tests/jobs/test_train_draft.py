"""`jobs.train_draft` trains on a run's own text, says what it would do, and refuses in one line."""

import json
import shutil
import threading
from pathlib import Path

import pytest
from safetensors.torch import load_file

from jobs import train_draft
from jobs.work import training
from tests.jobs.runs import wait_until
from training.trainer.options import WorkerOptions

NUM_STEPS = 30


def _command(run: Path, pair: tuple[str, str], output: Path, *more: str) -> list[str]:
    return [
        f"--corpus.path={run / 'out'}",
        f"--models.target={pair[0]}",
        f"--models.draft={pair[1]}",
        "--train.seq_len=64",
        "--train.tokens_per_step=256",
        f"--train.max_steps={NUM_STEPS}",
        "--train.learning_rate=1e-3",
        f"--output.path={output}",
        *more,
    ]


@pytest.mark.ray
@pytest.mark.usefixtures("ray_address")
def test_a_draft_is_trained_on_the_text_of_a_run(plain_run, text_pair, tmp_path, capsys):
    output = tmp_path / "draft"
    assert train_draft.main(_command(plain_run, text_pair, output)) == 0
    printed = capsys.readouterr()
    (*_, last) = [line for line in printed.err.splitlines() if line.startswith("step ")]
    assert last.startswith(f"step {NUM_STEPS}/{NUM_STEPS}  loss 0.")
    assert f"{NUM_STEPS} steps over" in printed.out
    provenance = json.loads((output / "provenance.json").read_text())
    assert list(provenance["corpus"]["runs"]) == [str(plain_run / "out")]
    curve = provenance["curve"]
    assert curve[-1]["loss"] < 0.5 * curve[0]["loss"]
    before, after = (load_file(f"{folder}/model.safetensors") for folder in (text_pair[1], output))
    assert before.keys() == after.keys()
    assert train_draft.main(_command(plain_run, text_pair, output)) == 0  # there is nothing left to do


def test_the_plan_is_printed_and_nothing_is_written(plain_run, text_pair, tmp_path, capsys):
    worth = ["remaining_tokens=90000", "tokens_per_second=100", "length_before=2", "length_after=3"]
    flags = ["--dry-run", "--measure", *(f"--worth.{each}" for each in worth)]
    assert train_draft.main(_command(plain_run, text_pair, tmp_path / "draft", *flags)) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"steps: {NUM_STEPS} of 4 rows of 64 tokens, over 1 workers" in said
    assert "by a few steps on this machine" in said
    assert "90,000 tokens / 100 a second * (1 - 2 / 3) = 5:00 saved" in said
    assert "training pays" in said
    assert not list(tmp_path.iterdir())


def test_workers_that_find_no_room_are_told_of(monkeypatch, capsys):
    monkeypatch.setattr(training.ray, "nodes", lambda: [{"Alive": True, "Resources": {"CPU": 2.0}, "Labels": {}}])
    ended, has_begun = threading.Event(), threading.Event()
    waiting = WorkerOptions(num=2, num_gpus=1)
    thread = threading.Thread(target=training.tell_of_waiting, args=(ended, has_begun, waiting, 0.01))
    thread.start()
    wait_until(lambda: "waiting for workers: there is room for 0 of 2 workers" in capsys.readouterr().err)
    ended.set()
    thread.join()
    has_begun.set()
    training.tell_of_waiting(threading.Event(), has_begun, waiting, 0.01)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--models.draft=nowhere/at/all"], "it is not a folder, and not a hub name"),
        (["--train.what=eagle3"], "is a model of its own, and train.what is 'eagle3'"),
        (["--train.steps=3"], "--train.steps is not a flag"),
        (["--corpus.held_out_share=0.999"], "lower corpus.held_out_share"),
        (["--worth.tokens_per_second=3"], "worth.remaining_tokens, worth.length_before, worth.length_after"),
    ],
)
def test_a_wrong_configuration_is_one_line(flags, message, plain_run, text_pair, tmp_path, capsys):
    assert train_draft.main(_command(plain_run, text_pair, tmp_path / "draft", *flags)) == 2
    said = capsys.readouterr().err.strip()
    assert message in said
    assert "\n" not in said
    assert not list(tmp_path.iterdir())


def test_an_output_that_holds_something_else_is_refused(plain_run, text_pair, tmp_path, capsys):
    shutil.copytree(text_pair[1], tmp_path / "draft")
    before = sorted((tmp_path / "draft").iterdir())
    assert train_draft.main(_command(plain_run, text_pair, tmp_path / "draft")) == 2
    assert "is not empty and is not what this training writes" in capsys.readouterr().err
    assert sorted((tmp_path / "draft").iterdir()) == before
