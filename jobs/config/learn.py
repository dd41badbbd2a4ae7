"""LearnSettings: whether, when and how a run's draft learns from the run's own texts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import pydantic

from training.trainer.options import TrainOptions, WorkerOptions


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
