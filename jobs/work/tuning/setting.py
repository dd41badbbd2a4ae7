"""Setting: how an engine of a run may be set without another promise, and which of them are tried."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from actors.settings import GeneratorSettings
from decoding.checkpoint.supported import model_folder
from decoding.choices import DrafterName, DType
from decoding.cpu.wait import num_cpus
from jobs.config.tune import TuneConfig
from jobs.driver.plan import Plan

Axes = Mapping[str, Seq[Mapping[str, Any]]]  # by name: the values of its fields that are tried


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A setting of an engine."""

    drafter: DrafterName
    draft: str | None  # a model or a head, for the drafters that have one
    slots: int
    threads: int
    dtype: DType

    @property
    def drafts(self) -> str:
        """The drafter and its draft, for a reader."""
        return self.drafter if self.draft is None else f"{Path(self.draft).name} ({self.drafter})"

    def __str__(self) -> str:
        slots = f"{self.slots} slot{'s' * (self.slots > 1)}"
        return f"{self.drafts}, {slots}, {self.threads} thread{'s' * (self.threads > 1)}, {self.dtype}"

    def num_changes(self, other: Setting) -> int:
        """Return how many fields differ."""
        return sum(getattr(self, each.name) != getattr(other, each.name) for each in fields(self))

    def of(self, settings: GeneratorSettings) -> GeneratorSettings:
        """Return the settings of a run with this one in them."""
        models = settings.models
        vocabulary = models.draft_vocabulary if self.draft == models.draft else "same"
        models = replace(models, draft=self.draft, dtype=self.dtype, draft_vocabulary=vocabulary)
        window = None if self.draft is None else settings.engine.draft_window
        engine = replace(settings.engine, drafter=self.drafter, num_slots=self.slots, draft_window=window)
        return replace(settings, models=models, engine=engine)


def plain_setting(plan: Plan) -> Setting:
    """Return the run's own setting with plain decoding, with which all are compared."""
    settings, threads = plan.settings, max(1, int(plan.pool.num_cpus))
    if plan.config.run.local or settings.models.device != "cpu":
        threads = torch.get_num_threads()
    return Setting(
        drafter="none", draft=None, slots=settings.engine.num_slots, threads=threads, dtype=settings.models.dtype
    )


def axes_to_try(config: TuneConfig, plan: Plan, plain: Setting) -> Axes:
    """Return what is tried; first what all settings compute with, since it decides whether drafts pay.

    Raises ValueError for a draft that is not there.
    """
    tune, models = config.tune, plan.settings.models
    is_on_cpu, threads = models.device == "cpu", list[int]()
    if is_on_cpu and not plan.config.run.local:  # where Ray gives an engine as many as its actor holds
        most = num_cpus() / plan.pool.max_actors
        threads = [*tune.threads] or [2**power for power in range(10) if 2**power <= most]
    is_open = config.generator.models.dtype == "auto" and plan.run_directory is None and plain.dtype == "float32"
    dtypes = tune.dtypes or ("bfloat16",) * (is_open and is_on_cpu)
    slots = tune.slots or (max(1, plain.slots // 2), 2 * plain.slots)
    drafters = [{"drafter": name, "draft": None} for name in ("none", "ngram", "suffix")]
    for draft in dict.fromkeys((models.draft, *tune.drafts)):
        if draft is not None:
            own = replace(plan.settings.engine, drafter=None).pick_drafter(model_folder(draft))
            drafters += [{"drafter": name, "draft": draft} for name in (own, "hybrid")]
    return {
        "dtype": [{"dtype": dtype} for dtype in dict.fromkeys((plain.dtype, *dtypes))],
        "threads": [{"threads": number} for number in sorted({plain.threads, *threads})],
        "drafter": drafters,
        "slots": [{"slots": number} for number in sorted({plain.slots, *slots})],
    }


def in_words(axes: Axes) -> str:
    """Return what is tried, for a reader."""
    drafters = [Setting(slots=1, threads=1, dtype="auto", **each).drafts for each in axes["drafter"]]
    named = {name: [str(each[name]) for each in axes[name]] for name in axes if name != "drafter"}
    return "; ".join(f"{name}: {', '.join(values)}" for name, values in {"drafters": drafters, **named}.items())
