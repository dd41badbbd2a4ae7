"""StageGroup: the stage actors of one target, each stage in its place of a placement group: started, replaced, ended.

The group belongs to the process that makes it: when that dies, Ray ends the actors. The ranks of a stage begin and end
together: one that is lost leaves the others in the middle of a forward.
"""

import logging
import time
from collections.abc import Iterable
from functools import partial
from math import inf
from typing import Any

import ray
import tenacity
from ray import exceptions
from ray.util.placement_group import remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from actors.placement import StageSettings
from actors.stages.actor import RankFailedError, StageActor
from actors.stages.places import take_places
from decoding.checkpoint.loading import DType
from decoding.device import Device, is_device_fault
from pipeline.logs import Event

_log = logging.getLogger(__name__)

# A process, a node or an object is gone. This OutOfMemoryError is Ray's: it ended a worker.
_LOSSES = (
    exceptions.ActorUnschedulableError,
    exceptions.LocalRayletDiedError,
    exceptions.NodeDiedError,
    exceptions.ObjectLostError,
    exceptions.OutOfMemoryError,
    exceptions.RayActorError,
    exceptions.WorkerCrashedError,
)
_LONGEST_WAIT_S = 30.0


class StageLostError(RuntimeError):
    """A stage died, or did not answer."""


class StageGroup:
    """The actors of every stage, their places, and what they have been told."""

    actor_class: type = StageActor

    def __init__(self, path: str, settings: StageSettings, device: Device, dtype: DType) -> None:
        """Start the actors of every stage of the model at `path`.

        Raises ValueError for a model that cannot be run or cut, RuntimeError if the stages do not come up.
        """
        self.settings = settings
        self.num_replaced = 0
        self._arguments = (path, settings.count, device, dtype)
        self._places = take_places(settings)
        self._setup: list[tuple[Any, ...]] = [("load",)]  # what all stages are told, and those that replace them
        self.ranks: list[list[Any]] = []  # of each stage, its actors
        self._num_told = [0] * settings.count  # of the setup, so much is done on each stage
        try:
            self.ranks += [self._start(index) for index in range(settings.count)]
            self._come_up()
        except StageLostError as error:
            self.close()
            raise RuntimeError(f"the stages did not load: {error}") from error
        except BaseException:
            self.close()
            raise

    @property
    def actors(self) -> list[Any]:
        """All actors, stage by stage."""
        return [actor for ranks in self.ranks for actor in ranks]

    def run(self, stage: int, method: str, *args: Any, to_first: tuple[Any, ...] = ()) -> list[Any]:
        """Call a method on all ranks of a stage; return references to their answers, the stage's answer first.

        `to_first` are arguments for the first rank only, behind the others.
        """
        first, *others = self.ranks[stage]
        answer = getattr(first, method).remote(*args, *to_first)
        return [answer, *(getattr(actor, method).remote(*args) for actor in others)]

    def tell_all(self, method: str, *args: Any) -> None:
        """Call this on every actor, and on each that replaces one. To be told a second time changes nothing."""
        self._setup.append((method, *args))
        self._tell(time.monotonic() + self.settings.start_timeout_s)

    def ask_all(self, method: str, *args: Any) -> list[Any]:
        """Return what every actor answers to this call. Raises StageLostError, or what the call itself raises."""
        until = time.monotonic() + self.settings.timeout_s
        asked = [(stage, answer) for stage in range(len(self.ranks)) for answer in self.run(stage, method, *args)]
        return [self._get(stage, answer, until) for stage, answer in asked]

    def end(self, stage: int) -> None:
        """End the processes of a stage: it hangs, or one of them is lost."""
        for actor in self.ranks[stage]:
            ray.kill(actor, no_restart=True)

    def recover(self, sessions: Iterable[int] = (), until: float = inf) -> None:
        """Replace every stage that does not answer, tell each what it has not been told, and release these sessions.

        Each attempt may take `stages.start_timeout_s`, the last one begins within that time, and none goes on after
        `until` (by `time.monotonic`). Raises StageLostError if no attempt succeeds.
        """
        settings = self.settings
        attempts = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(StageLostError),
            wait=tenacity.wait_exponential(multiplier=0.1, max=_LONGEST_WAIT_S),
            stop=tenacity.stop_any(
                tenacity.stop_before_delay(settings.start_timeout_s),
                tenacity.stop_after_attempt(max(1, settings.most_restarts)),
            ),
            reraise=True,
        )
        attempts(lambda: self._heal(sessions, min(until, time.monotonic() + settings.start_timeout_s)))

    def close(self) -> None:
        """End the actors, and give their places back. Once more does nothing."""
        for actor in self.actors:
            ray.kill(actor, no_restart=True)
        remove_placement_group(self._places)

    def _come_up(self) -> None:
        """Load the stages; those that are lost over it are replaced, as later."""
        try:
            self._tell(time.monotonic() + self.settings.start_timeout_s)
        except StageLostError as lost:
            _log.warning(Event("stage lost while loading", cause=str(lost)))
            self.recover()

    def _heal(self, sessions: Iterable[int], until: float) -> None:
        asked = [self.run(stage, "pid") for stage in range(len(self.ranks))]
        every = [reference for references in asked for reference in references]
        answered, _ = ray.wait(every, num_returns=len(every), timeout=self.settings.timeout_s, fetch_local=False)
        for stage, references in enumerate(asked):
            try:
                for reference in references:
                    ray.get(reference, timeout=self.settings.timeout_s if reference in answered else 0)
            except exceptions.RayError as error:
                _log.warning(Event("stage replaced", stage=stage, cause=type(error).__name__))
                self.end(stage)
                self.ranks[stage], self._num_told[stage] = self._start(stage), 0
                self.num_replaced += 1
        try:
            self._tell(until)
        except StageLostError:
            raise
        except Exception as error:  # of storage, or of memory that another process has: it may pass
            raise StageLostError(f"a stage did not come up: {type(error).__name__}: {error}") from error
        for session in sessions:  # stages that live still hold its slots
            self.ask_all("call", "release", session)

    def _tell(self, until: float) -> None:
        """Do what is left of the setup, on all stages at once."""
        told = [
            (stage, self.run(stage, method, *args))
            for stage in range(len(self.ranks))
            for method, *args in self._setup[self._num_told[stage] :]
        ]
        failed: dict[int, Exception] = {}
        for stage, references in told:
            try:
                self._get_all(stage, references, until)
            except Exception as error:  # noqa: BLE001 - raised below, when the others have been heard
                failed.setdefault(stage, error)
                if len(references) > 1:
                    self.end(stage)  # some ranks have done it, and wait for the others in what comes next
            else:
                self._num_told[stage] += stage not in failed
        if failed:
            raise next(iter(failed.values()))

    def _get_all(self, stage: int, references: list[Any], until: float) -> None:
        """Return when all ranks have answered; raises the first error, also while others wait for who failed."""
        pending = references
        while pending:
            ready, pending = ray.wait(pending, num_returns=1, timeout=max(0.0, until - time.monotonic()))
            for reference in ready or pending[:1]:
                self._get(stage, reference, until)

    def _get(self, stage: int, reference: Any, until: float) -> Any:
        """Return what a call of a stage returned. Raises StageLostError, or what the call itself raised."""
        timeout_s = max(0.0, until - time.monotonic())
        try:
            return ray.get(reference, timeout=timeout_s)
        except exceptions.GetTimeoutError as error:
            raise StageLostError(
                f"stage {stage} did not answer in time (stages.timeout_s is {self.settings.timeout_s:g} s, "
                f"start_timeout_s {self.settings.start_timeout_s:g} s)"
            ) from error
        except exceptions.RayError as error:
            if is_loss(error):
                first_line = next(iter(str(error).splitlines()), "")
                raise StageLostError(f"stage {stage} is lost: {type(error).__name__}: {first_line}") from error
            raise cause_of(error) from None

    def _start(self, stage: int) -> list[Any]:
        path, count, device, dtype = self._arguments
        settings = self.settings
        options: dict[str, Any] = {
            **settings.resource_options,
            "max_restarts": 0,  # a new actor starts with empty slots, and only this process knows the rows
            "max_task_retries": 0,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(self._places, placement_group_bundle_index=stage),
        }
        make = ray.remote(self.actor_class).options(**options).remote
        arguments = (path, stage, count, device, dtype)
        if settings.tensor_parallel == 1:
            return [make(*arguments)]
        # Longer than any wait of this process, which finds out which stage hangs.
        patience_s = 2 * max(settings.timeout_s, settings.start_timeout_s)
        share = partial(make, *arguments, num_ranks=settings.tensor_parallel, timeout_s=patience_s)
        first = share(rank=0)
        port = first.open_meeting_place.remote()
        return [first, *(share(rank=rank, port=port) for rank in range(1, settings.tensor_parallel))]


def is_loss(error: BaseException | None) -> bool:
    """Tell whether a call failed because a process, a node or an object is gone, or late, and not by what it did."""
    if isinstance(error, exceptions.RayTaskError):  # what is lost may be a stage's input, or its device
        return isinstance(error.cause, BaseException) and (is_device_fault(error.cause) or is_loss(error.cause))
    return isinstance(error, (*_LOSSES, exceptions.GetTimeoutError, RankFailedError))


def cause_of(error: exceptions.RayError) -> Exception:
    """Return what the call itself raised, or the error as it is."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, Exception) else error
