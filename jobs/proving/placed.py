"""PlacedEngine: an engine as a worker of the run has it, with draft actors and stages, for a proof to write with."""

import sys
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any

import ray

from actors.drafts.remote_drafter import DraftLinks
from actors.engines import backend_of
from actors.engines.loading import load_codec
from actors.errors import describe
from actors.resources import shortage
from actors.settings import GeneratorSettings
from decoding.sequence import Sequence
from jobs.driver.plan import Plan
from jobs.proving.asked import Codecs, PlacedInput
from jobs.proving.comparison import in_order, rows_of

_PATIENCE_S = 20.0  # of the cluster's autoscaler


class PlacedEngine:
    """An engine with its models where the configuration puts them. An actor."""

    def __init__(self, settings: GeneratorSettings, roster: Any) -> None:
        """Load it, or keep the reason why that fails for `failure`."""
        self._settings, self._codecs = settings, Codecs(load_codec(settings))
        self._links = None if roster is None else DraftLinks(settings, roster)
        self._failure = ""
        try:
            loaded = backend_of(settings).load(self._links)
            self._engine, self._runs_on = loaded.engine, str(loaded.footer["device"])
        except (ValueError, RuntimeError) as error:
            self._failure = describe(error)

    def failure(self) -> str:
        """Return why the engine could not be loaded; an empty text if it is ready."""
        return self._failure

    def runs_on(self) -> str:
        """Return the processor of its models, as the engine names it."""
        return self._runs_on

    def write(
        self, inputs: Seq[PlacedInput], temperature: float, num_slots: int | None = None, is_shuffled: bool = False
    ) -> list[Sequence]:
        """Return what the engine writes for these rows of the input, in their order.

        It has `num_slots`, or as many as it was loaded with, and gets the rows in this order or in another. Raises
        RuntimeError if its draft actors draft nothing: then the texts prove nothing about them.
        """
        settings = self._settings.at_temperature(temperature)
        rows = rows_of(inputs, self._codecs, settings, self._engine.max_model_len)
        if num_slots is not None:
            self._engine.resize(num_slots)
        self._engine.submit(in_order(rows, is_shuffled))
        while self._engine.has_work:
            self._engine.step()
        if self._links is not None and not any(row.num_draft_tokens for row in rows):
            raise RuntimeError(
                "the draft actors drafted nothing, so there is nothing to compare: they did not start, or were slower "
                "than drafts.timeout_s, or drafting did not pay (engine.draft_length 'fixed' drafts always)"
            )
        for row in rows:
            row.stop_condition = None  # it cannot leave this process
        return rows


def new_engine(plan: Plan, settings: GeneratorSettings, roster: Any = None) -> Any:
    """Return the handle of a PlacedEngine with what an actor of the run holds. Raises ValueError if it cannot load.

    Prints what the cluster lacks if it takes long.
    """
    engine = ray.remote(PlacedEngine).options(**plan.pool.actor_options).remote(settings, roster)
    timeout_s = plan.config.run.no_progress_timeout_s
    try:
        reference = engine.failure.remote()
        if not ray.wait([reference], timeout=_PATIENCE_S)[0]:
            one = replace(plan.pool, min_actors=1, max_actors=1, initial_actors=None)
            if lack := shortage(one, ray.nodes(), plan.settings):
                print(f"waiting for an engine: {lack}", file=sys.stderr, flush=True)
        try:
            failure = str(ray.get(reference, timeout=timeout_s))
        except ray.exceptions.GetTimeoutError:
            failure = f"it was not ready within run.no_progress_timeout_s, {timeout_s:g} seconds"
        if failure:
            raise ValueError(f"the engine cannot be loaded as the run loads it: {failure}")
    except BaseException:
        ray.kill(engine)
        raise
    return engine
