"""A lesson: a draft is trained on the texts that there are, and judged beside the draft that it would replace."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import ray

from training.corpus.corpus import Corpus
from training.corpus.options import CorpusOptions
from training.corpus.rows import Example
from training.evaluation.kind_score import DraftScore, GateVerdict, judge
from training.evaluation.pair import Pair
from training.evaluation.score import score
from training.trainer.options import ModelOptions, TrainOptions, WorkerOptions
from training.trainer.plan import TrainingPlan
from training.trainer.train import TrainedDraft, train_planned


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """What is taught, to which draft, and what it must have learned."""

    models: ModelOptions  # with the draft that training begins with
    corpus: CorpusOptions
    train: TrainOptions = field(default_factory=TrainOptions)
    workers: WorkerOptions = field(default_factory=WorkerOptions)
    output: str  # a new folder for the draft
    num_draft_tokens: int = 4  # of the rounds in which both are judged
    max_held_out_rows: int = 200  # that both are judged on, drawn from all
    min_gain: float = 0.05
    max_loss: float = 0.01


@dataclass(frozen=True)
class LessonResult:
    """What came of a lesson."""

    trained: TrainedDraft
    before: DraftScore
    after: DraftScore
    verdict: GateVerdict


def hold(lesson: Lesson) -> LessonResult:
    """Train, then score both drafts on held-out rows in a task with the resources of a trainer.

    Raises ValueError or OSError for what cannot be trained or scored, and what Ray raises if a process is lost.
    """
    options = lesson.corpus
    corpus = Corpus.open(options, lesson.models.target, lesson.models.tokenizer)
    examples = drawn(corpus.examples(held_out=True), lesson.max_held_out_rows)
    if not examples:
        raise ValueError(
            f"none of the {corpus.num_rows:,} rows is held out (share {options.held_out_share}); raise that share, or "
            "train after more rows"
        )
    workers = lesson.workers
    plan = TrainingPlan.make(lesson.models, options, lesson.train, workers)
    trained = train_planned(plan, lesson.output)
    task = ray.remote(_scores).options(num_cpus=workers.num_cpus, num_gpus=workers.num_gpus, max_retries=0)
    before, after = ray.get(task.remote(lesson, trained.path, examples))
    return LessonResult(trained, before, after, judge(before, after, lesson.min_gain, lesson.max_loss))


def drawn(examples: Iterable[Example], most: int) -> list[Example]:
    """Return at most this many of the examples, each with the same chance: the first ones may all be of one kind."""
    chance, kept = random.Random(0), list[Example]()
    for number, example in enumerate(examples):
        if number < most:
            kept.append(example)
        elif (place := chance.randrange(number + 1)) < most:
            kept[place] = example
    return kept


def _scores(lesson: Lesson, path: str, examples: Sequence[Example]) -> tuple[DraftScore, DraftScore]:
    """Score the draft before and the draft in `path`, over one target."""
    models = lesson.models
    assert models.draft is not None
    before = Pair(models.draft, models.target, models.device, models.dtype)
    after = Pair(path, models.target, models.device, models.dtype, before.target)
    first, second = (score(pair, examples, lesson.num_draft_tokens) for pair in (before, after))
    return first, second
