"""Learning: the draft of a run is trained on the run's own texts while engines generate, and swapped if it is better.

The run never waits for it: a thread beside the driver starts a lesson in a task of the cluster, whose processes may die
at any time. What a lesson yields is a folder and a verdict. If the gate is passed, the folder is offered to the run as
the next version of its draft (`pipeline/run/progress/draft_versions.py`).
"""

from __future__ import annotations

import logging
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import ray

from actors.engines import backend_of
from actors.errors import describe
from actors.settings import ModelSettings
from jobs.config.train import LearnSettings
from jobs.driver.plan import Plan
from jobs.driver.progress import format_seconds
from pipeline.logs import Event
from pipeline.run.directory import RunDirectory
from pipeline.run.progress.draft_versions import DraftVersions
from pipeline.storage.location import Location
from training.corpus.options import CorpusOptions
from training.trainer.options import ModelOptions, check_together

if TYPE_CHECKING:  # what trains is imported where a draft learns
    from training.lesson import Lesson, LessonResult

_LOOK_EVERY_S = 0.5
_TO_END_S = 30.0  # for the thread, once the run has ended
_LEARNED = "learned-"  # what the names of the folders of drafts begin with
_log = logging.getLogger(__name__)


class Learning:
    """The lessons of one command."""

    def __init__(self, settings: LearnSettings, plan: Plan, run_directory: RunDirectory) -> None:
        """Hold a lesson whenever `settings.every_rows` rows were committed."""
        self._settings, self._plan = settings, plan
        self._run = run_directory.location.name
        self._versions = DraftVersions(run_directory.location)
        self._changed = threading.Condition()
        self._num_rows = self._num_rows_taught = 0
        self._is_over = False
        self.thread = threading.Thread(target=self._teach, name="learning", daemon=True)

    def committed(self, num_rows: int) -> None:
        """Count rows that were committed just now."""
        with self._changed:
            self._num_rows += num_rows
            self._changed.notify()

    def end(self) -> None:
        """Hold no more lessons, and give up the one that is under way."""
        with self._changed:
            self._is_over = True
            self._changed.notify()
        self.thread.join(_TO_END_S)

    def _teach(self) -> None:
        for number in range(1, self._settings.max_trainings + 1):
            with self._changed:
                self._changed.wait_for(
                    lambda: self._is_over or self._num_rows - self._num_rows_taught >= self._settings.every_rows
                )
                self._num_rows_taught = self._num_rows
                if self._is_over:
                    return
            try:
                result = self._lesson(number)
                if result is None:
                    return
                self._use(number, result)
            except (ray.exceptions.RayError, ValueError, OSError) as error:
                if self._is_over:  # Ray is leaving, or the lesson was given up
                    return
                self._say(f"training {number} failed, and the draft stays as it is: {describe(error)}", logging.WARNING)

    def _lesson(self, number: int) -> LessonResult | None:
        """Hold a lesson; return None if the run ended before it did."""
        from training.lesson import hold
        from training.trainer.train import checkpoints_beside

        lesson = lesson_of(self._settings, self._plan, self._run, self._versions)
        self._say(f"training {number} begins, after {self._num_rows_taught:,} rows")
        # A task of its own process: what dies there does not end the driver.
        result = ray.remote(hold).options(num_cpus=0, max_retries=0).remote(lesson)
        try:
            while not self._is_over:
                ready, _ = ray.wait([result], timeout=_LOOK_EVERY_S)
                if ready:
                    found: LessonResult = ray.get(result)
                    return found
            ray.cancel(result, force=True)
            ray.wait([result], timeout=_LOOK_EVERY_S)
            return None
        finally:  # the next lesson is another one, which does not go on from these
            shutil.rmtree(checkpoints_beside(lesson.output), ignore_errors=True)

    def _use(self, number: int, result: LessonResult) -> None:
        trained, verdict = result.trained, result.verdict
        said = f"training {number} took {format_seconds(trained.seconds)} of {trained.steps:,} steps"
        if not verdict.passes:
            self._say(f"{said}; the draft stays as it is: {verdict.reason}")
            return
        version = self._versions.offer(trained.path)
        self._say(f"{said}; the new draft is version {version.number}: {verdict.reason}")
        _log.info(Event("draft learned", version=version.number, score=result.after.as_dict()["all"]))

    def _say(self, text: str, level: int = logging.INFO) -> None:
        print(f"the draft learns: {text}", file=sys.stderr, flush=True)
        _log.log(level, Event("draft learns", what=text))


@contextmanager
def learning(settings: LearnSettings, plan: Plan, run_directory: RunDirectory) -> Iterator[Learning]:
    """Return a context in which the draft learns, if that is asked for."""
    lessons = Learning(settings, plan, run_directory)
    if settings.every_rows:
        for left in Path(f"{run_directory.location.name}/drafts").glob(f".{_LEARNED}*"):
            shutil.rmtree(left, ignore_errors=True)  # of a command that was killed in the middle of a lesson
        lessons.thread.start()
    try:
        yield lessons
    finally:
        if settings.every_rows:
            lessons.end()


def lesson_of(settings: LearnSettings, plan: Plan, run: str, versions: DraftVersions) -> Lesson:
    """Return the next lesson: the draft that is in use now learns from what is committed now."""
    from training.lesson import Lesson

    models, in_use = plan.settings.models, versions.in_use()
    draft = models.draft if in_use is None else in_use.path
    what: Any = "eagle3" if plan.settings.engine.drafts_with_a_head(models.draft) else "draft"
    folder = f"{run}/drafts" if settings.path is None else Location.parse(settings.path).name
    return Lesson(
        models=model_options(models, draft),
        corpus=CorpusOptions(path=run, kind_column=settings.kind_column, held_out_share=settings.held_out_share),
        train=replace(settings.train, what=what),
        workers=settings.workers,
        output=f"{folder}/{_LEARNED}{uuid4().hex[:12]}",
        num_draft_tokens=plan.settings.engine.num_speculative_tokens,
        min_gain=settings.min_gain,
        max_loss=settings.max_loss,
    )


def model_options(models: ModelSettings, draft: str | None) -> ModelOptions:
    """Return the models of a run as a training takes them, with the draft that it begins with."""
    return ModelOptions(
        target=models.target, draft=draft, tokenizer=models.tokenizer, device=models.device, dtype=models.dtype
    )


def refuse_learning(settings: LearnSettings, plan: Plan) -> None:
    """Raise ValueError if the draft of this run cannot learn as it is asked to."""
    if not settings.every_rows:
        return
    models, why = plan.settings.models, backend_of(plan.settings).why_draft_stays
    if models.draft_vocabulary == "map":
        only = "only a draft with the target's own tokens can learn from its texts"
        why = why or f"models.draft_vocabulary is 'map', and {only}"
    if plan.settings.sampling.structured is not None:
        why = why or "sampling.structured is set, and a draft is judged and trained without a grammar"
    if plan.task.runs_programs:
        why = why or "the rows run program.function, and a draft learns from rows of one generation"
    if why is not None:
        raise ValueError(f"learn.every_rows is {settings.every_rows}, but {why}; set learn.every_rows to 0")
    if settings.kind_column is not None and settings.kind_column not in plan.carried:
        raise ValueError(
            f"learn.kind_column is {settings.kind_column!r}, which the run does not carry (it carries "
            f"{', '.join(plan.carried) or 'no columns'}); add it to input.carry_columns, or name another one"
        )
    assert models.draft is not None, "a draft that can be replaced is there"
    from training.trainer.plan import check_can_learn, learns_as

    if (kind := learns_as(models.draft)) not in ("draft", "eagle3"):
        raise ValueError(
            f"learn.every_rows is {settings.every_rows}, but models.draft ({models.draft}) is a head of kind {kind}, "
            "which learns by dray train-draft alone; set learn.every_rows to 0"
        )
    if settings.train.what not in ("draft", kind):
        raise ValueError(
            f"learn.train.what is {settings.train.what!r}, but models.draft ({models.draft}) is a {kind}, and a run "
            "keeps the architecture of its draft; leave learn.train.what out, or name a head in models.draft"
        )
    try:
        check_can_learn(models.draft, models.target)
    except ValueError as error:
        raise ValueError(f"learn.every_rows is {settings.every_rows}, but {error}; or set it to 0") from error
    check_together(model_options(models, models.draft), settings.train, settings.workers)
    if not Location.parse(settings.path or plan.config.output.path).is_local:
        where = "the run directory" if settings.path is None else f"learn.path ({settings.path})"
        raise ValueError(
            f"learn.every_rows is {settings.every_rows}, but {where} is in an object store, from which drafts cannot "
            "be loaded; name a folder that all nodes see in learn.path"
        )
