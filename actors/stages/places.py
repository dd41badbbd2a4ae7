"""The places of a target's stages: a placement group, named after the process that made it, and given back after it."""

import logging
from contextlib import suppress
from typing import Any

import ray
from ray.util.placement_group import get_placement_group, placement_group, placement_group_table, remove_placement_group

from actors.placement import StageSettings
from pipeline.logs import Event
from pipeline.ray_internals import is_actor_dead

_PREFIX = "dray-stages"
_LOOK_EVERY_S = 60.0
_log = logging.getLogger(__name__)


def take_places(settings: StageSettings) -> Any:
    """Wait for room, and return a placement group with one bundle for each stage.

    Ray 2.60 promises that the group goes when the process goes that asked for it, and keeps the group of an actor that
    died until the job ends. So each group is named after the actor and the process that made it. A process that makes a
    group, and the driver now and then, give back the groups whose makers are gone.
    """
    give_back_orphans()
    bundle = settings.bundle or {"CPU": 0.001}
    selectors = [dict(settings.label_selector)] * settings.count
    places: Any = placement_group(
        [bundle] * settings.count,
        strategy=settings.strategy,
        name=":".join((_PREFIX, *_maker(), ray.ObjectRef.from_random().hex())),
        **({"bundle_label_selector": selectors} if settings.label_selector else {}),
    )
    needs = ", ".join(f"{amount:g} {name}" for name, amount in bundle.items())
    while not places.wait(_LOOK_EVERY_S):  # others work meanwhile; if none does, run.no_progress_timeout_s ends the run
        give_back_orphans()
        _log.warning(Event("waiting for room for stages", stages=settings.count, each=needs))
    return places


def give_back_orphans() -> None:
    """Remove the groups of this job whose makers are gone: dead, or begun anew in another process."""
    job, actor, process = _maker()
    for group in placement_group_table().values():
        name = group["name"]
        if group["state"] == "REMOVED" or not name.startswith(f"{_PREFIX}:{job}:"):
            continue
        _, _, maker, its_process, _ = name.split(":")
        if (maker == actor and its_process != process) or (maker not in (actor, "driver") and is_actor_dead(maker)):
            with suppress(ValueError):  # another process has just given it back
                remove_placement_group(get_placement_group(name))


def _maker() -> tuple[str, str, str]:
    """Return the ids of this job, this actor ("driver" where there is none) and this process."""
    context = ray.get_runtime_context()
    return context.get_job_id(), context.get_actor_id() or "driver", context.get_worker_id()
