"""StageGroup: the stage actors of one target, each in its place of a placement group: started, replaced and ended.

The group belongs to the process that makes it: when that dies, Ray ends the actors.
"""

from __future__ import annotations

import logging
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.placement_group import remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from actors.settings import StageSettings
from actors.stage_actor import StageActor, StageFacts, StaleStepError
from actors.stage_places import take_places
from decoding.device import Device
from decoding.model import DType
from pipeline.logs import Event

_log = logging.getLogger(__name__)


class StageLostError(RuntimeError):
    """A stage died, or did not answer."""


class StageGroup:
    """The actors."""

    actor_class: type = StageActor

    def __init__(self, path: str, settings: StageSettings, device: Device, dtype: DType) -> None:
        """Start one actor for each stage of the model at `path`.

        Raises ValueError for a model that cannot be run or cut, RuntimeError if the cluster has no room in time, or the
        stages do not come up.
        """
        self.settings = settings
        self.num_replaced = 0
        self._arguments = (path, settings.count, device, dtype)
        self._places = take_places(settings)
        self._setup: list[tuple[Any, ...]] = [("load",)]  # what was told to all stages, and is told to a new one, too
        self.actors: list[Any] = [self._start(index) for index in range(settings.count)]
        try:
            self.ask_all("load")
        except StageLostError as error:
            self.close()
            raise RuntimeError(f"the stages did not load: {error}") from error
        except ValueError:
            self.close()
            raise

    @property
    def placement_id(self) -> str:
        """Of the placement group, as Ray lists it."""
        return str(self._places.id.hex())

    def facts(self) -> list[StageFacts]:
        """What there is to know of each stage by now."""
        return self.ask_all("facts")

    def tell_all(self, method: str, *args: Any) -> None:
        """Call this on every stage, and on every one that comes in the place of another."""
        self._setup.append((method, *args))
        self.ask_all(method, *args)

    def ask_all(self, method: str, *args: Any) -> list[Any]:
        """What every stage answers to this call. Raises StageLostError; errors of the call itself as they are."""
        references = [getattr(actor, method).remote(*args) for actor in self.actors]
        return [self._get(index, reference) for index, reference in enumerate(references)]

    def end(self, index: int) -> None:
        """End the process of a stage that hangs."""
        ray.kill(self.actors[index], no_restart=True)

    def heal(self) -> None:
        """Replace every stage that does not answer. Raises StageLostError if a new one does not come up in time."""
        asked = [actor.facts.remote() for actor in self.actors]
        replaced = []
        for index, reference in enumerate(asked):
            try:
                ray.get(reference, timeout=self.settings.timeout_s)
            except (RayError, GetTimeoutError, AssertionError) as error:
                _log.warning(Event("stage replaced", stage=index, cause=type(error).__name__))
                self.end(index)
                self.actors[index] = self._start(index)
                replaced.append(index)
        for index in replaced:
            self.num_replaced += 1
            for method, *args in self._setup:
                self._get(index, getattr(self.actors[index], method).remote(*args))

    def close(self) -> None:
        """End the actors, and give their places back."""
        for actor in self.actors:
            ray.kill(actor, no_restart=True)
        remove_placement_group(self._places)

    def _get(self, index: int, reference: Any) -> Any:
        timeout_s = self.settings.start_timeout_s
        try:
            return ray.get(reference, timeout=timeout_s)
        except GetTimeoutError as error:
            raise StageLostError(f"stage {index} did not answer in {timeout_s:g} s") from error
        except RayTaskError as error:
            if is_loss(error):
                raise StageLostError(f"stage {index} is lost: {error}") from error
            raise (error.cause if isinstance(error.cause, Exception) else error) from None
        except RayError as error:
            raise StageLostError(f"stage {index} is lost: {type(error).__name__}") from error

    def _start(self, index: int) -> Any:
        path, count, device, dtype = self._arguments
        settings = self.settings
        options = {
            "num_cpus": settings.num_cpus,
            "num_gpus": settings.num_gpus,
            "resources": dict(settings.resources),
            "max_restarts": 0,  # a new one starts empty: only we know what stood in it
            "max_task_retries": 0,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(self._places, placement_group_bundle_index=index),
        }
        if settings.memory:
            options["memory"] = settings.memory
        return ray.remote(self.actor_class).options(**options).remote(path, index, count, device, dtype)


def is_loss(error: BaseException | None) -> bool:
    """Whether a call failed because a process, a node or an object is gone, and not by what it did."""
    if isinstance(error, GetTimeoutError | StaleStepError):
        return True
    if isinstance(error, RayTaskError):  # what is lost may be a stage's input
        return isinstance(error.cause, BaseException) and is_loss(error.cause)
    return isinstance(error, RayError)
