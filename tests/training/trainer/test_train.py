"""A training on Ray gives the same draft whatever dies on the way, and no draft where it cannot go on."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import ray
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from pipeline.storage.location import Location
from tests.jobs.runs import wait_until
from tests.pipeline.stores import CREDENTIALS, running_s3_server, s3_uri
from tests.training.pair import DRAFT, TARGET
from training.corpus.options import CorpusOptions
from training.corpus.rows import is_held_out
from training.learners.packing import Document
from training.trainer.checkpoint import TrainingProgress
from training.trainer.options import ModelOptions, TrainOptions, WorkerOptions
from training.trainer.plan import TrainingPlan
from training.trainer.train import TrainedDraft, TrainingInterrupted, train_planned

pytestmark = pytest.mark.ray

NUM_STEPS = 40
OPTIONS = TrainOptions(
    seq_len=128, tokens_per_step=256, max_steps=NUM_STEPS, checkpoint_every=10, learning_rate=1e-3, seed=3
)
Watch = Callable[[TrainingProgress], None]


def _train(texts: str, output: Path | str, watch: Watch | None = None, **changes: object) -> TrainedDraft:
    plan = TrainingPlan.make(
        changes.pop("models", ModelOptions(target=TARGET, draft=DRAFT)),  # type: ignore[arg-type]
        CorpusOptions(path=texts, temperature=0.8),
        changes.pop("options", OPTIONS),  # type: ignore[arg-type]
        changes.pop("workers", WorkerOptions()),  # type: ignore[arg-type]
    )
    return train_planned(plan, str(output), progress=watch, **changes)  # type: ignore[arg-type]


class _Holder:
    """What an actor that holds a CPU does: nothing."""


def _weights(output: Path) -> dict[str, torch.Tensor]:
    return load_file(output / "model.safetensors")


def _assert_equal(found: Path, expected: Path) -> None:
    left, right = _weights(found), _weights(expected)
    assert left.keys() == right.keys()
    for name, weight in left.items():
        assert torch.equal(weight, right[name]), name


@pytest.fixture(scope="module")
def undisturbed(texts: str, ray_address: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The draft of a training to which nothing happens."""
    output = tmp_path_factory.mktemp("undisturbed") / "draft"
    trained = _train(texts, output)
    assert trained.steps == NUM_STEPS
    return output


def test_workers_read_the_texts_that_are_not_held_out(texts: str, documents: list[Document]) -> None:
    corpus = CorpusOptions(path=texts, temperature=0.8, held_out_share=0.3)
    plan = TrainingPlan.make(ModelOptions(target=TARGET, draft=DRAFT), corpus, OPTIONS, WorkerOptions())
    prompts = [each.prompt_token_ids for each in plan.documents()]
    assert not any(is_held_out(prompt, 0.3) for prompt in prompts)
    assert len(prompts) == plan.counts.num_rows < len(documents)


def test_a_training_writes_a_draft_its_provenance_and_nothing_else(undisturbed: Path, texts: str) -> None:
    assert [path.name for path in undisturbed.parent.iterdir() if path.name != ".draft.training"] == ["draft"]
    assert not list((undisturbed.parent / ".draft.training").iterdir())
    assert AutoModelForCausalLM.from_pretrained(undisturbed, dtype="auto").dtype is torch.bfloat16
    provenance = json.loads((undisturbed / "provenance.json").read_text())
    assert provenance["corpus"]["paths"] == [texts]
    assert provenance["options"]["seed"] == provenance["seed"] == 3
    assert provenance["steps"] == provenance["curve"][-1]["step"] == NUM_STEPS
    assert provenance["metrics"]["loss"] > 0
    assert provenance["fingerprints"].keys() == {"corpus", "target", "tokenizer", "draft"}


def test_the_same_training_again_has_nothing_to_do_and_another_is_refused(undisturbed: Path, texts: str) -> None:
    before = (undisturbed / "model.safetensors").stat().st_mtime_ns
    assert _train(texts, undisturbed).steps == NUM_STEPS
    with pytest.raises(ValueError, match="is not empty and is not what this training writes"):
        _train(texts, undisturbed, options=TrainOptions(seq_len=128, tokens_per_step=256, max_steps=3))
    assert (undisturbed / "model.safetensors").stat().st_mtime_ns == before


def test_a_worker_that_is_killed_costs_nothing_but_time(undisturbed: Path, texts: str, tmp_path: Path) -> None:
    killed: list[int] = []

    def kill(progress: TrainingProgress) -> None:
        if progress.step > OPTIONS.checkpoint_every and not killed:
            killed.append(progress.worker_pid)
            os.kill(progress.worker_pid, signal.SIGKILL)

    trained = _train(texts, tmp_path / "draft", kill)
    assert killed
    assert [point["step"] for point in trained.curve] == list(range(1, NUM_STEPS + 1))
    _assert_equal(tmp_path / "draft", undisturbed)


@pytest.mark.slow
def test_a_driver_that_is_killed_costs_nothing_but_time(
    undisturbed: Path, texts: str, ray_address: str, tmp_path: Path
) -> None:
    output = tmp_path / "draft"
    command = [
        *(f"--corpus.path={texts}", "--corpus.temperature=0.8", f"--models.target={TARGET}", f"--models.draft={DRAFT}"),
        *(f"--train.{name}={getattr(OPTIONS, name)}" for name in ("seq_len", "tokens_per_step", "learning_rate")),
        *(f"--train.max_steps={NUM_STEPS}", "--train.checkpoint_every=10", f"--run.seed={OPTIONS.seed}"),
        *(f"--output.path={output}", f"--run.ray_address={ray_address}"),
    ]
    driver = subprocess.Popen([sys.executable, "-m", "jobs.train_draft", *command], stderr=subprocess.PIPE, text=True)
    wait_until(lambda: bool(list(tmp_path.glob(".draft.training/*/checkpoint_manager_snapshot.json"))), every_s=0.005)
    os.kill(driver.pid, signal.SIGKILL)
    driver.communicate()
    assert not output.exists()
    seen: list[int] = []
    trained = _train(texts, output, lambda progress: seen.append(progress.step))
    assert seen[0] > OPTIONS.checkpoint_every
    assert trained.steps == NUM_STEPS
    _assert_equal(output, undisturbed)


@pytest.mark.slow
def test_a_training_that_was_stopped_goes_on_with_other_workers(undisturbed: Path, texts: str, tmp_path: Path) -> None:
    stop = threading.Event()
    with pytest.raises(TrainingInterrupted, match="the same command goes on"):
        _train(texts, tmp_path / "draft", lambda _: stop.set(), stop=stop)
    assert not (tmp_path / "draft").exists()
    seen: list[int] = []
    watch = lambda progress: seen.append(progress.step)  # noqa: E731
    trained = _train(texts, tmp_path / "draft", watch, workers=WorkerOptions(num=2))
    assert seen[0] > 1
    expected = json.loads((undisturbed / "provenance.json").read_text())["curve"]
    for found, alone in zip(trained.curve, expected, strict=True):
        assert found["num_tokens"] == alone["num_tokens"]
        assert found["loss"] == pytest.approx(alone["loss"], rel=1e-2)


@pytest.mark.slow
def test_a_loss_that_is_no_number_stops_training_at_once(texts: str, ray_address: str, tmp_path: Path) -> None:
    began: list[int] = []
    with pytest.raises(ValueError, match=r"is (nan|inf) at step \d: training stops, and nothing is written"):
        _train(
            texts,
            tmp_path / "draft",
            lambda progress: began.append(progress.worker_pid),
            options=replace(OPTIONS, learning_rate=1e30, checkpoint_every=1),
        )
    assert len(set(began)) <= 1  # no other worker tries it again
    assert not (tmp_path / "draft").exists()


@pytest.mark.slow
def test_a_training_with_fewer_workers_than_wished_for_writes_into_a_store(
    undisturbed: Path, texts: str, ray_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster has room for fewer than eight workers, and an actor holds one CPU of which Ray Train does not know.

    Checkpoints and the draft go to a store alone.
    """
    for name, value in {**CREDENTIALS, "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "5"}.items():
        monkeypatch.setenv(name, value)
    holder = ray.remote(num_cpus=1)(_Holder).remote()
    ray.get(holder.__ray_ready__.remote())
    with running_s3_server() as address:
        output = s3_uri(address, "bucket/drafts/draft")
        trained = _train(texts, output, workers=WorkerOptions(num=8, min_num=1), options=replace(OPTIONS, seq_len=32))
        place = Location.parse(output)
        assert "model.safetensors" in place.files()
        assert json.loads(place.child("provenance.json").read_if_there() or b"")["steps"] == trained.steps == NUM_STEPS
        assert not Location.parse(s3_uri(address, "bucket/drafts/.draft.training")).files()


@pytest.mark.slow
def test_a_training_ends_when_its_hours_are_over_and_writes_its_draft(
    texts: str, ray_address: str, tmp_path: Path
) -> None:
    hours = 4 / 3600
    trained = _train(texts, tmp_path / "draft", options=replace(OPTIONS, max_steps=100_000, max_hours=hours))
    assert 1 <= trained.steps < 100_000  # on a busy machine the first step takes longer than these seconds
    assert trained.seconds > 3600 * hours
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "draft").config.model_type
