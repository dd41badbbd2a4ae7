"""A draft learns from the texts of its run while that goes on: no token changes, whatever becomes of the training."""

import os
import re
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from actors.workers import engine_worker
from actors.workers.engine_worker import EngineWorker
from jobs.config.loading import load
from jobs.config.run import RunConfig
from jobs.driver import execution, learning
from jobs.driver.plan import make_plan
from pipeline.run.directory import RunDirectory
from pipeline.run.progress.draft_versions import DraftVersions
from tests.jobs.runs import content, generations, problems, wait_until
from training import lesson as lessons
from training.trainer.checkpoint import TrainingProgress

LEARN = ("--learn.every_rows=8", "--learn.max_trainings=1", "--learn.kind_column=kind", "--learn.held_out_share=0.3")
TRAIN = ("--learn.train.seq_len=64", "--learn.train.tokens_per_step=256", "--learn.train.learning_rate=1e-3")
ANY_GAIN = ("--learn.min_gain=-1", "--learn.max_loss=1", "--learn.train.max_steps=4")
ONE = ("--actors.max_actors=1", "--actors.units_in_flight=1", "--engine.draft_length=fixed")
TWO = ("--actors.min_actors=2", "--actors.max_actors=2", *ONE[1:])


def waiting(run: Path, is_over: Any) -> type[EngineWorker]:
    """Return a generator that begins its third unit when `is_over` says that the training has had its effect."""

    class Waiting(EngineWorker):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            engine_worker.LOOK_EVERY_S = 0.1
            super().__init__(*args, **kwargs)

        def _read(self, unit: Any) -> Any:
            if len(list(run.glob("data/*.parquet"))) >= 2:
                wait_until(lambda: is_over(self), seconds=400)
            return super()._read(unit)

    return Waiting


@pytest.mark.ray
@pytest.mark.usefixtures("ray_address")
def test_a_draft_that_has_learned_is_used_and_no_token_changes(job, plain_run, monkeypatch):
    job.source = plain_run / "in.jsonl"
    monkeypatch.setattr(
        execution, "EngineWorker", waiting(job.output, lambda self: self.engine.loop.engine.draft_version == 1)
    )
    assert job.generate(*ONE, *LEARN, *TRAIN, *ANY_GAIN) == 0, job.printed()
    said = job.printed()
    assert re.search(r"the draft learns: training 1 begins, after (8|16) rows", said), said
    assert "the new draft is version 1" in said, said
    assert content(job.output) == content(plain_run / "out")
    assert problems(job.output) == []
    assert {row["draft_version"] for row in generations(job.output)} == {0, 1}
    (version,) = DraftVersions(str(job.output)).all()
    assert (Path(version.path) / "provenance.json").is_file()
    assert sorted(path.name for path in (job.output / "drafts").iterdir()) == [
        Path(version.path).name,
        "version-000001.json",
    ]


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("ray_address")
def test_a_trainer_and_an_engine_that_are_killed_cost_no_token(job, plain_run, monkeypatch):
    """One of two engines dies after the trainer did; the training goes on, and both engines take its draft."""
    job.source = plain_run / "in.jsonl"
    trainer_died, engine_died = job.folder / "trainer_died", job.folder / "engine_died"

    def hold(lesson: lessons.Lesson) -> lessons.LessonResult:
        train = lessons.train_planned

        def kill(progress: TrainingProgress) -> None:
            if not trainer_died.exists():
                os.kill(progress.worker_pid, signal.SIGKILL)
                trainer_died.touch()

        lessons.train_planned = lambda *arguments: train(*arguments, progress=kill)
        try:
            return lessons.hold(lesson)
        finally:
            lessons.train_planned = train

    def is_over(generator: Any) -> bool:
        if trainer_died.exists():
            with suppress(FileExistsError):
                engine_died.touch(exist_ok=False)
                os._exit(9)
        return generator.engine.loop.engine.draft_version == 1

    monkeypatch.setattr(lessons, "hold", hold)
    monkeypatch.setattr(execution, "EngineWorker", waiting(job.output, is_over))
    assert job.generate(*TWO, *LEARN, *TRAIN, *ANY_GAIN) == 0, job.printed()
    assert engine_died.exists()
    assert "the new draft is version 1" in job.printed()
    assert content(job.output) == content(plain_run / "out")
    assert problems(job.output) == []
    assert {row["draft_version"] for row in generations(job.output)} == {0, 1}


@pytest.mark.ray
@pytest.mark.usefixtures("ray_address")
def test_a_training_that_fails_costs_no_row(job, plain_run, monkeypatch):
    job.source = plain_run / "in.jsonl"
    failed = job.folder / "failed"

    class Failing(learning.Learning):
        def _say(self, text: str, level: int = 0) -> None:
            super()._say(text, level)
            if "failed" in text:
                failed.touch()

    def hold(lesson: lessons.Lesson) -> lessons.LessonResult:
        raise ValueError("the loss of step 3 is no number")

    monkeypatch.setattr(lessons, "hold", hold)
    monkeypatch.setattr(learning, "Learning", Failing)
    monkeypatch.setattr(execution, "EngineWorker", waiting(job.output, lambda _: failed.exists()))
    assert job.generate(*ONE, *LEARN, *TRAIN, *ANY_GAIN) == 0, job.printed()
    assert "training 1 failed, and the draft stays as it is: " in job.printed()
    assert content(job.output) == content(plain_run / "out")
    assert {row["draft_version"] for row in generations(job.output)} == {0}
    assert not list((job.output / "drafts").glob("*")), "a lesson that failed left something"


def test_what_a_command_that_was_killed_left_of_a_lesson_is_removed(job):
    job.read(8)
    job.begin()
    left = job.output / "drafts" / ".learned-0123456789ab.training" / "training-0123"
    left.mkdir(parents=True)
    plan = make_plan(load(RunConfig, job.command("--learn.every_rows=8"), prog="test"))
    with learning.learning(plan.config.learn, plan, RunDirectory.open(str(job.output))):
        assert not list((job.output / "drafts").iterdir())


def test_a_draft_that_is_not_trained_here_is_refused_before_anything_is_written(job, monkeypatch):
    def refuse(draft: str, target: str) -> None:
        raise ValueError(f"{draft!r} has FP8 weights, which cannot be trained; name another draft")

    monkeypatch.setattr("training.trainer.plan.check_can_learn", refuse)
    job.read(8)
    assert job.generate("--learn.every_rows=8") == 2
    assert "has FP8 weights, which cannot be trained; name another draft; or set it to 0" in job.printed()
    assert not job.output.exists()


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--engine.verification=rejection"], "engine.verification is 'rejection', under which the text depends"),
        (["--engine.drafter=ngram"], "the drafter is 'ngram', which has no draft model or head to replace"),
        (["--learn.train.what=eagle3"], "learn.train.what is 'eagle3', but models.draft"),
        (["--learn.kind_column=knid"], "learn.kind_column is 'knid', which the run does not carry (it carries kind)"),
        (["--learn.workers.num=99"], "for 99 workers; raise train.tokens_per_step, or use fewer workers"),
        (
            ["--learn.path=mock:///drafts"],
            "learn.path (mock:///drafts) is in an object store, from which drafts cannot",
        ),
        (["--models.draft_vocabulary=map"], "models.draft_vocabulary is 'map', and only a draft with the target's own"),
    ],
)
def test_a_draft_that_cannot_learn_is_refused_before_anything_is_written(job, flags, why):
    job.read(8)
    assert job.generate("--learn.every_rows=8", *flags) == 2
    assert why in " ".join(job.printed().split())
    assert not job.output.exists()
