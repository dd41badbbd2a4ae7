"""TrainConfig, EvalConfig, LearnSettings: configurations of `dray train-draft`, `dray eval-draft`, and in a run."""

from dataclasses import asdict, astuple, dataclass, field, replace
from typing import Annotated, Literal

import pydantic

from actors.settings import ModelSettings
from pipeline.limits import check_numbers
from training.corpus.options import CorpusOptions
from training.trainer.options import ModelOptions, TrainOptions, WorkerOptions, Worth, check_together


@dataclass(frozen=True, kw_only=True)
class LearnSettings:
    """A draft that learns: while engines generate, it is trained on what is committed, judged, and used if better."""

    every_rows: Annotated[int, pydantic.Field(ge=0)] = 0
    """Input rows to commit before each training; 0: the draft does not learn."""
    max_trainings: Annotated[int, pydantic.Field(ge=1)] = 8
    """Trainings in one command, those that failed included."""
    held_out_share: Annotated[float, pydantic.Field(gt=0, lt=1)] = 0.05
    """Share of the prompts on which drafts are judged, and never trained."""
    min_gain: float = 0.05
    """Share by which a new draft must write more tokens a round on held-out rows to be used."""
    max_loss: float = 0.01
    """Most by which the acceptance rate of a kind of rows may fall for that."""
    kind_column: str | None = None
    """Column that tells kinds apart, such as a carried one; without it all rows are of one kind."""
    path: str | None = None
    """Folder for the drafts, which all nodes must see; drafts/ in the run directory unless given. A run in an object
    store needs one."""
    train: TrainOptions = field(default_factory=TrainOptions)
    """How it learns."""
    workers: WorkerOptions = field(default_factory=WorkerOptions)
    """The processes that train; they wait until the cluster has room for them."""


@dataclass(frozen=True, kw_only=True)
class TrainOutput:
    """The place to write to."""

    path: str
    """A new folder for the draft, written whole or not at all; local or a URI."""


@dataclass(frozen=True, kw_only=True)
class TrainRun:
    """The training as a whole."""

    seed: int = 0
    """Seed of the texts' order, and of a new head's weights."""
    storage: str | None = None
    """Folder for checkpoints, which all nodes can write; hidden beside the output unless given. Local or a URI."""
    progress: Literal["lines", "none"] = "lines"
    """Progress: a line every ten seconds, or none."""
    ray_address: str | None = None
    """Ray cluster; unless given RAY_ADDRESS, one that `ray start` started on this machine, or one of its own (which
    "local" always means)."""


@dataclass(frozen=True, kw_only=True)
class WorthSettings:
    """What is left to generate: with all four, --dry-run says whether training pays."""

    remaining_tokens: int | None = None
    """Output tokens that the run still has to write."""
    tokens_per_second: float | None = None
    """Output tokens a second of the run, now."""
    length_before: float | None = None
    """Mean acceptance length of the run now: tokens a round."""
    length_after: float | None = None
    """Mean acceptance length with the draft that is hoped for."""

    def __post_init__(self) -> None:
        given = asdict(self)
        missing = [f"worth.{name}" for name, value in given.items() if value is None]
        if 0 < len(missing) < len(given):
            raise ValueError(
                f"{', '.join(missing)}: whether training pays follows from all four fields; give them, too"
            )
        check_numbers(self, "worth.", above_0=tuple(self.__dataclass_fields__))

    def worth(self) -> Worth | None:
        """Return what is known of the run; None if nothing was given."""
        given = astuple(self)
        return None if None in given else Worth(*given)


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Trains a draft, or a head, on the texts of its target; interrupted, the same command goes on."""

    dry_run: bool = False
    """Print the plan and stop; no model is loaded unless --measure is given, nothing is written."""
    measure: bool = False
    """With --dry-run: load the models, and time a few steps on this machine."""
    corpus: CorpusOptions
    """The texts."""
    models: ModelOptions
    """The models: one teaches, the other learns."""
    train: TrainOptions = field(default_factory=TrainOptions)
    """What learns, and how."""
    workers: WorkerOptions = field(default_factory=WorkerOptions)
    """The processes that train."""
    output: TrainOutput
    """Where to write."""
    run: TrainRun = field(default_factory=TrainRun)
    """The training as a whole."""
    worth: WorthSettings = field(default_factory=WorthSettings)
    """What is left to generate, for the plan."""

    def __post_init__(self) -> None:
        check_together(self.models, self.train, self.workers)

    def train_options(self) -> TrainOptions:
        """Return what the training gets."""
        return replace(self.train, seed=self.run.seed)


@dataclass(frozen=True, kw_only=True)
class EvalSettings:
    """What is evaluated, and when the gate is passed."""

    num_draft_tokens: Annotated[int, pydantic.Field(ge=1, le=64)] = 4
    """Tokens that a round drafts, as with engine.draft_length 'fixed'."""
    rows: Literal["held_out", "all"] = "held_out"
    """Rows to evaluate on: those that no draft is trained on, or all."""
    max_rows: Annotated[int, pydantic.Field(ge=1)] | None = 1000
    """Evaluate on this many of these rows at most, the first ones."""
    costs: bool = False
    """Measure what rounds cost here, and print the speed-up over plain decoding that follows."""
    num_slots: Annotated[int, pydantic.Field(ge=1)] = 16
    """Rows of a round whose cost is measured."""
    min_gain: Annotated[float, pydantic.Field(ge=0)] = 0.05
    """The gate: the share by which tokens a round must be better than those of the draft in `against`."""
    max_loss: Annotated[float, pydantic.Field(ge=0)] = 0.01
    """The gate: how much worse the acceptance rate of any kind may be."""
    json_path: str | None = None
    """File for the result as JSON; it is printed in any case."""


@dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """Evaluates a draft on texts of its target: what a run would have accepted, without generating.

    Prints by kind of text how often draft and target agree, how much of their laws they share, and the rounds that a
    run with this draft would have had, replayed from the rows' noise keys. With --against a second draft is evaluated
    on the same rows, and the gate says whether the first may replace it. Exit code 0, or 1 if it may not.
    """

    against: str | None = None
    """Draft in use now, which models.draft is compared with: a model, or a head."""
    corpus: CorpusOptions
    """The target's texts."""
    models: ModelSettings
    """The target, and the draft to evaluate."""
    eval: EvalSettings = field(default_factory=EvalSettings)
    """What is evaluated, and when the gate is passed."""

    def __post_init__(self) -> None:
        if self.models.draft is None:
            found = "is a list" if self.models.candidates else "names no draft"
            raise ValueError(f"models.draft {found}; name the draft to evaluate")
        if self.models.draft_vocabulary != "same":
            raise ValueError(
                f"models.draft_vocabulary is {self.models.draft_vocabulary!r}: a draft with another tokenizer cannot "
                "be evaluated on texts; compare it in a run (engine.draft_length fixed)"
            )
