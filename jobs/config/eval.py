"""EvalConfig: the configuration of `jobs.eval_draft`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

import pydantic

from actors.settings import ModelSettings
from training.corpus.options import CorpusOptions


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
            raise ValueError("models.draft names no draft; name the draft to evaluate")
        if self.models.draft_vocabulary != "same":
            raise ValueError(
                f"models.draft_vocabulary is {self.models.draft_vocabulary!r}: a draft with another tokenizer cannot "
                "be evaluated on texts; compare it in a run (engine.draft_length fixed)"
            )
