"""PlacedEngine: an engine as a worker of the run has it, with draft actors and stages, for a proof to write with."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import ray

from actors.drafts.links import DraftLinks
from actors.drafts.roster import roster_of
from actors.settings import GeneratorSettings
from actors.workers.loading import load_codec, load_engine
from decoding.sequence import Sequence
from jobs.driver.cluster import start_ray
from jobs.driver.plan import Plan
from jobs.driver.proof import PlacedInput, rows_of
from pipeline.storage.location import Location


class PlacedEngine:
    """An engine with its models where the configuration puts them. An actor."""

    def __init__(self, settings: GeneratorSettings, roster: Any) -> None:
        """Load it. Raises ValueError if the models cannot be run."""
        self._settings, self._codec = settings, load_codec(settings)
        self._links = None if roster is None else DraftLinks(settings, roster)
        self._engine = load_engine(settings, self._links)

    def write(self, inputs: Seq[PlacedInput], temperature: float) -> list[Sequence]:
        """Return what the engine writes for these rows of the input, in their order."""
        sampling = replace(self._settings.sampling, temperature=temperature)
        settings = replace(self._settings, sampling=sampling)
        rows = rows_of(inputs, self._codec, settings, self._engine.max_model_len)
        list(self._engine.stream(rows))
        for row in rows:
            row.stop_condition = row.tag = None  # they are of this process
        return rows


@contextmanager
def placed_engine(plan: Plan) -> Iterator[Any]:
    """Yield the handle of a PlacedEngine, or None if the run has all of an engine in one process."""
    settings = plan.settings
    if settings.placement == "colocated" and not settings.stages.is_apart:
        yield None
        return
    start_ray(plan.config.run.ray_address)
    run = Location.parse(plan.config.output.path).short_name
    with roster_of(settings, run, plan.config.run.logs, 1) as roster:
        engine = ray.remote(PlacedEngine).options(**plan.pool.actor_options).remote(settings, roster)
        try:
            yield engine
        finally:
            ray.kill(engine)  # its stages end with it
