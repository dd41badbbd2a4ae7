"""DrayTexts: what Dray's engine writes in every setting, and what transformers' own code writes."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import ray

from actors.drafts.roster import roster_of
from actors.engines.loading import load_codec
from decoding.choices import LOSSY, NEED_A_MODEL, TEXT_DEPENDS_ON_DRAFT
from decoding.engine.engine import Engine
from decoding.engine.load import Parts, load_parts
from decoding.network.reference import Reference
from decoding.sequence import Sequence
from jobs.config.prove import AskedName, ProveSettings
from jobs.driver.cluster import start_ray
from jobs.driver.plan import Plan
from jobs.proving.asked import Codecs, PlacedInput
from jobs.proving.comparison import (
    Finding,
    Setting,
    compare,
    findings,
    margins,
    problem_with_row,
    rows_of,
    settings_to_try,
)
from jobs.proving.placed import new_engine
from pipeline.storage.location import Location


class DrayTexts:
    """The models in this process, and the engine as the run places it if the configuration puts models elsewhere."""

    asked_by_default: tuple[AskedName, ...] = ("nothing", "json_object", "json_schema", "grammar", "mixed")

    def __init__(self, plan: Plan, prove: ProveSettings) -> None:
        """Load the models. Raises ValueError or OSError for what cannot be compared."""
        if (verification := plan.settings.engine.verification) in TEXT_DEPENDS_ON_DRAFT:
            kept = "the distribution of the target and not its tokens"
            if verification in LOSSY:
                kept = "neither the tokens of the target nor its distribution"
            raise ValueError(
                f"engine.verification is {verification!r}, which keeps {kept}; "
                "only 'coupled' can be compared token by token"
            )
        self._plan, self._codecs = plan, Codecs(load_codec(plan.settings))
        models, options = plan.settings.models, plan.settings.engine
        self._settings = settings_to_try(prove, options, models.draft)
        needs_draft = any(setting.drafter in NEED_A_MODEL for setting in self._settings)
        loaded = replace(options, drafter=None if needs_draft else "none")
        self._parts: Parts = load_parts(
            models.target,
            models.draft,
            loaded,
            models.device,
            models.dtype,
            draft_vocabulary=models.draft_vocabulary,
            tokenizer=models.tokenizer,
        )
        plain = replace(options, drafter="none", draft_length="fixed", num_slots=1)
        # In slots of its own: the engines of the settings leave other rows in theirs meanwhile.
        self._plain = Engine.over(replace(self._parts.beside(), drafter_name="none", draft=None), plain)
        margin = self._parts.target.close_call
        grammars = self._parts.grammars
        self._reference = Reference.load(
            models.target, models.device, models.dtype, close_call=margin, grammars=grammars
        )
        self._is_float32 = models.dtype == "float32"
        self.runs_on = self._parts.target.runs_on
        self.is_promised = self._is_float32 or self._parts.target.is_batch_invariant
        # In other dtypes transformers' code rounds otherwise than any other.
        engine = "the engine, one row at a time and without a draft"
        self.written_alone_by = "transformers' own code" if self._is_float32 else engine
        self._placed: Any = None

    @property
    def settings(self) -> list[Setting]:
        """The settings in this process, and that of the engine that is placed as in the run, if there is one."""
        return self._settings if self._placed is None else [*self._settings, self._placed_setting()]

    def place(self, resources: ExitStack) -> None:
        """Load the engine that has its models elsewhere; `resources` ends it. Raises ValueError if it cannot load."""
        plan, settings = self._plan, self._plan.settings
        if settings.apart:
            start_ray(plan.config.run.ray_address)
            run = Location.parse(plan.config.output.path).short_name
            roster = resources.enter_context(roster_of(settings, run, plan.config.run.logs, 1))
            self._placed = new_engine(plan, settings, roster)
            resources.callback(ray.kill, self._placed)  # its stages end with it

    def _placed_setting(self) -> Setting:
        settings = self._plan.settings
        options, where = settings.engine, ", ".join(part.where for part in settings.apart)
        drafter = options.pick_drafter(settings.models.draft)
        length = options.num_speculative_tokens
        return Setting(drafter, options.draft_length, length, options.slots, is_shuffled=False, where=where)

    def problem_with(self, placed: PlacedInput) -> str | None:
        """Return why the engine cannot write this row of the input; None if it can."""
        return problem_with_row(placed, self._codecs, self._plan.settings, self._plain.problem_with)

    def alone(self, inputs: list[PlacedInput], temperature: float) -> Iterator[Sequence]:
        """Yield each row of the input as it is written by the target alone, one after the other."""
        rows = self._rows(inputs, temperature)
        return self._reference.write(rows) if self._is_float32 else self._plain.stream(rows)

    def _rows(self, inputs: list[PlacedInput], temperature: float) -> list[Sequence]:
        settings = self._plan.settings.at_temperature(temperature)
        return rows_of(inputs, self._codecs, settings, self._parts.max_model_len)

    def findings(
        self, inputs: list[PlacedInput], temperature: float, expected: list[Sequence], settings: list[Setting]
    ) -> Iterator[Finding]:
        """Yield what each of the settings writes, beside the `expected` rows."""
        make_rows = partial(self._rows, inputs, temperature)
        here = [setting for setting in settings if setting in self._settings]
        yield from findings(self._parts, self._plan.settings.engine, here, make_rows, expected, self._reference)
        if self._placed is not None:
            written = ray.get(self._placed.write.remote(inputs, temperature))
            yield compare(self._placed_setting(), written, expected, margins(make_rows, expected, self._reference))
