"""Setting: how an engine of a run may be set without another promise, and which of them are tried."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from actors.engines.candidates import WITHOUT_A_MODEL, pairs_of
from actors.engines.footprint import footprint, with_slots
from actors.settings import GeneratorSettings
from decoding.cache.footprint import Footprint
from decoding.checkpoint.supported import model_folder
from decoding.choices import NEED_A_MODEL, DrafterName, DType
from decoding.cpu.wait import num_cpus
from decoding.heads.format.folder import is_head
from decoding.heads.mtp.files import settled_draft
from jobs.config.tune import TuneConfig
from jobs.driver.plan import Plan

Axes = Mapping[str, Seq[Mapping[str, Any]]]  # by name: the values of its fields that are tried


_ENGINES_AT_ONCE = 3  # at least: the plain setting, its twin, and the one that is tried


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

    @property
    def without_draft(self) -> Setting:
        """The same with plain decoding, with which all are compared."""
        return replace(self, drafter="none", draft=None)

    def fields_beside(self, own: Setting) -> dict[str, Any]:
        """Return the fields of a configuration that make this setting of the run's own."""
        named: dict[str, Any] = {"engine.drafter": self.drafter, "engine.num_slots": self.slots}
        for field, name in (("draft", "models.draft"), ("dtype", "models.dtype"), ("threads", "actors.num_cpus")):
            if field in self.changes(own) and getattr(self, field) is not None:
                named[name] = getattr(self, field)
        return named

    def changes(self, own: Setting) -> list[str]:
        """Return which of its fields differ from those of the run's own setting."""
        return [each.name for each in fields(self) if getattr(self, each.name) != getattr(own, each.name)]

    def of(self, settings: GeneratorSettings) -> GeneratorSettings:
        """Return the settings of a run with this one in them."""
        models = settings.models
        vocabulary = models.draft_vocabulary if self.draft == models.draft else "same"
        models = replace(models, draft=self.draft, dtype=self.dtype, draft_vocabulary=vocabulary)
        window = None if self.draft is None else settings.engine.draft_window
        engine = replace(settings.engine, drafter=self.drafter, num_slots=self.slots, draft_window=window)
        return replace(settings, models=models, engine=engine)

    def footprints(self, settings: GeneratorSettings) -> list[Footprint]:
        """Return the memory of the models of such an engine of a run."""
        own = self.of(settings)
        return [footprint(own, model) for model in (own.models.target, self.draft) if model]


def own_setting(plan: Plan) -> Setting:
    """Return the setting that the run has without tuning."""
    settings, threads = plan.settings, max(1, int(plan.pool.num_cpus))
    if torch.cuda.is_available():
        settings = with_slots(settings, _ENGINES_AT_ONCE)
    engine, models = settings.engine, settings.models
    if plan.config.run.local or models.device != "cpu":
        threads = torch.get_num_threads()
    drafter = engine.pick_drafter(models.draft)
    draft = models.draft if drafter in NEED_A_MODEL else None
    return Setting(drafter=drafter, draft=draft, slots=engine.slots, threads=threads, dtype=models.dtype)


def axes_to_try(config: TuneConfig, plan: Plan, own: Setting) -> Axes:
    """Return what is tried; first what all settings compute with, since it decides whether drafts pay.

    Raises ValueError for a draft that is not there.
    """
    tune, models = config.tune, plan.settings.models
    is_on_cpu, threads = models.device == "cpu", list[int]()
    if is_on_cpu and not plan.config.run.local:  # where Ray gives an engine as many as its actor holds
        most = num_cpus() / plan.pool.max_actors
        threads = [*tune.threads] or [2**power for power in range(10) if 2**power <= most]
    is_open = config.generator.models.dtype == "auto" and plan.run_directory is None and own.dtype == "float32"
    dtypes = tune.dtypes or ("bfloat16",) * (is_open and is_on_cpu)
    slots = tune.slots or (max(1, own.slots // 2), 2 * own.slots)
    drafters = [{"drafter": name, "draft": None} for name in ("none", "ngram", "suffix")]
    named = (models.draft, *(each for each in models.candidates if each not in WITHOUT_A_MODEL))
    asked = [settled_draft(draft, models.target) for draft in tune.drafts]
    if why_none := next((why for _, why in asked if why), ""):
        raise ValueError(f"tune.drafts has 'auto', which found none: {why_none}")
    for draft, _ in dict.fromkeys([*(settled_draft(draft, models.target) for draft in named), *asked]):
        if draft is not None:
            pairs = pairs_of(plan.settings, draft if is_head(draft) else model_folder(draft))
            drafters += [{"drafter": name, "draft": draft} for name, _ in pairs]
    return {
        "dtype": [{"dtype": dtype} for dtype in dict.fromkeys((own.dtype, *dtypes))],
        "threads": [{"threads": number} for number in sorted({own.threads, *threads})],
        "drafter": drafters,
        "slots": [{"slots": number} for number in sorted({own.slots, *slots})],
    }


def in_words(axes: Axes) -> str:
    """Return what is tried, for a reader."""
    drafters = [Setting(slots=1, threads=1, dtype="auto", **each).drafts for each in axes["drafter"]]
    named = {name: [str(each[name]) for each in axes[name]] for name in axes if name != "drafter"}
    return "; ".join(f"{name}: {', '.join(values)}" for name, values in {"drafters": drafters, **named}.items())
