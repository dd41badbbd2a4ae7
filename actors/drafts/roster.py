"""DraftRoster: the draft actors of a run and the generators that use them. An actor beside the driver, as the ledger.

Generators come and go, and may die without notice: each gives signs of life, and one that gives none counts as gone. A
draft actor is started when a generator asks for one and all others serve enough generators; one without a generator is
ended. Draft actors belong to the process of the roster, so they end with it, and it ends with the driver.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import ray
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from actors.errors import describe
from actors.placement import DraftSettings
from actors.resources import on_this_node
from actors.run_notes import Rejection, WantedDraft
from actors.settings import GeneratorSettings
from pipeline.logs import Event, LogSettings, set_up_logs
from pipeline.ray_internals import actor_id_of, node_of_actor

BEAT_EVERY_S = 10.0  # how often a generator gives a sign of life
_SILENT_S = 60.0  # without one the generator counts as gone; draft actors without a generator end after as long
_GROUP_PATIENCE_S = 60.0  # draft actors for which there is no room together are placed one by one
_SPARE_LANES = 2  # of a generator beside those of its engine, for measuring costs
_log = logging.getLogger(__name__)
Client = tuple[str, int]  # a generator, and which of its draft actors


@dataclass(eq=False)
class _Group:
    """A placement group and its free bundles."""

    handle: Any
    free: list[int]
    size: int
    began: float


@dataclass(eq=False)
class _DraftActor:
    handle: Any
    group: _Group | None
    bundle: int
    clients: set[Client] = field(default_factory=set)
    unused_since: float = 0.0
    swap: Any = None  # the reference of the call that gives it the draft that is wanted; None: it began with that
    successor: Any = None  # a reference that comes once the draft actor in its place is ready; its node is about to go

    @property
    def actor_id(self) -> str:
        return actor_id_of(self.handle)


class DraftRoster:
    """The record of a run's draft actors and of their generators."""

    def __init__(
        self,
        settings: GeneratorSettings,
        run: str,
        log_settings: LogSettings,
        num_generators: int = 1,
        start: Callable[..., Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
        node_of: Callable[[str], str] = node_of_actor,
    ) -> None:
        """Begin without draft actors. Those of the first `num_generators` are placed together."""
        set_up_logs(log_settings, run=run)
        self._drafts: DraftSettings = settings.drafts
        self._num_placed_next = self._drafts.num_for(num_generators)  # later ones are placed one by one
        self._start = start or (lambda options: _start(options, settings, run, log_settings))
        self._clock, self._node_of = clock, node_of
        self._actors: list[_DraftActor] = []
        self._groups: list[_Group] = []
        self._beats: dict[str, float] = {}  # when each generator gave its last sign of life
        self._num_lost = 0
        self._wanted = WantedDraft()
        self._version = 0  # of the draft that all draft actors use

    def draft_actor(self, generator: str, index: int, lost: str | None) -> Any:
        """Return the handle of a generator's draft actor `index`, and replace the one with the id `lost`."""
        self.beat(generator)
        client = (generator, index)
        for actor in list(self._actors):
            if lost is not None and actor.actor_id == lost:
                self._num_lost += 1
                _log.warning(Event("draft actor replaced", actor=lost, lost=self._num_lost))
                self._remove(actor)
        for actor in self._actors:
            if client in actor.clients:
                return actor.handle
        room = [
            actor
            for actor in self._actors
            if actor.successor is None and self._num_served(actor) < self._drafts.num_sharing
        ]
        actor = min(room, key=self._num_served) if room else self._add()
        actor.clients.add(client)
        return actor.handle

    def use_draft(self, wanted: WantedDraft) -> dict[int, Rejection]:
        """Let all draft actors, and those to come, draft with this version; return why one could not use it."""
        if wanted != self._wanted:
            self._wanted = wanted
            for actor in self._actors:
                actor.swap = actor.handle.use_draft.remote(wanted.path)
        failures = [failure for actor in self._actors if (failure := self._failure_of(actor)) is not None]
        return {self._wanted.number: Rejection("refused", failures[0])} if failures and self._wanted.number else {}

    def draft_version(self) -> int:
        """Return the newest version that all draft actors have come to use."""
        swaps = [actor.swap for actor in self._actors if actor.swap is not None]
        have_come = len(_arrived(swaps)) == len(swaps)
        if have_come and all(self._failure_of(actor) is None for actor in self._actors):
            self._version = self._wanted.number
        return self._version

    def _failure_of(self, actor: _DraftActor) -> str | None:
        """Return why a draft actor keeps its draft; None if it has replaced it, is about to, or is gone."""
        if actor.swap is None or not _arrived([actor.swap]):
            return None
        try:
            ray.get(actor.swap)
        except ray.exceptions.RayTaskError as error:
            return describe(error)
        except ray.exceptions.RayError:  # its generators will report that it is lost
            return None
        return None

    def beat(self, generator: str) -> None:
        """Record a sign of life of the generator, and end the draft actors without a generator."""
        self._beats[generator] = self._clock()
        self._end_unused()

    def leave(self, generator: str) -> None:
        """Remove a generator that needs no more drafts. A draft actor that only it used ends."""
        self._beats.pop(generator, None)
        for actor in self._actors:
            had = {client for client in actor.clients if client[0] == generator}
            actor.clients -= had
            if had and not self._num_served(actor):
                actor.unused_since = float("-inf")
        self._end_unused()

    def drain(self, nodes: Collection[str]) -> None:
        """Start another draft actor for each one on these nodes, which ends once its successor has loaded its model.

        Its generators then find it lost and ask for another, so that hardly a round has no draft.
        """
        for actor in list(self._actors):
            if actor.successor is not None:
                if _arrived([actor.successor]):
                    _log.info(Event("draft actor moved", actor=actor.actor_id))
                    self._remove(actor)
            elif actor.clients and self._node_of(actor.actor_id) in nodes:
                successor = self._add()
                successor.clients, actor.clients = actor.clients, set()
                actor.successor = successor.handle.__ray_ready__.remote()

    def _num_served(self, actor: _DraftActor) -> int:
        """Return the number of its clients that are alive."""
        now, never = self._clock(), float("-inf")
        return sum(now - self._beats.get(generator, never) <= _SILENT_S for generator, _ in actor.clients)

    def _end_unused(self) -> None:
        """End the draft actors that have served no generator for a while, and the placement groups without one."""
        now = self._clock()
        for actor in list(self._actors):
            if self._num_served(actor):
                actor.unused_since = now
            elif now - actor.unused_since > _SILENT_S:
                _log.info(Event("draft actor let go", actor=actor.actor_id))
                self._remove(actor)
        self._dissolve_groups(now)

    def _add(self) -> _DraftActor:
        group, bundle, options = None, 0, self._drafts.actor_options
        if self._drafts.demand:  # Ray refuses an empty bundle
            group, bundle = self._free_bundle()
            scheduling = PlacementGroupSchedulingStrategy(group.handle, bundle)
            options = {**self._drafts.resource_options, "scheduling_strategy": scheduling}
        handle = self._start(options)
        actor = _DraftActor(handle, group, bundle, unused_since=self._clock())
        if self._wanted.number:
            actor.swap = handle.use_draft.remote(self._wanted.path)
        self._actors.append(actor)
        return actor

    def _free_bundle(self) -> tuple[_Group, int]:
        for group in self._groups:
            if group.free:
                return group, group.free.pop(0)
        size, self._num_placed_next = self._num_placed_next, 1
        labels = [dict(self._drafts.label_selector)] * size if self._drafts.label_selector else None
        handle = placement_group([self._drafts.demand] * size, self._drafts.strategy, bundle_label_selector=labels)
        group = _Group(handle, list(range(1, size)), size, self._clock())
        self._groups.append(group)
        return group, 0

    def _dissolve_groups(self, now: float) -> None:
        """Remove groups without an actor, and groups that found no room: their actors may find some one by one."""
        for group in list(self._groups):
            own = [actor for actor in self._actors if actor.group is group]
            is_waiting = group.size > 1 and now - group.began > _GROUP_PATIENCE_S and not _is_placed(group.handle)
            if is_waiting:
                needs = str(self._drafts.demand)
                _log.warning(Event("no room for draft actors together", actors=group.size, needs=needs))
                for actor in own:
                    self._remove(actor)
            if is_waiting or not own:
                self._groups.remove(group)
                remove_placement_group(group.handle)

    def _remove(self, actor: _DraftActor) -> None:
        self._actors.remove(actor)
        if actor.group is not None:
            actor.group.free.append(actor.bundle)
        ray.kill(actor.handle)


def start_roster(settings: GeneratorSettings, run: str, log_settings: LogSettings, num_generators: int) -> Any:
    """Return a new roster as an actor on the driver's node, where it lives as long as the driver."""
    return on_this_node(DraftRoster).remote(settings, run, log_settings, num_generators)


@contextmanager
def roster_of(settings: GeneratorSettings, run: str, log_settings: LogSettings, num_generators: int) -> Iterator[Any]:
    """Yield a new roster under placement "split", otherwise None. It ends with the context, with its draft actors."""
    if not settings.has_draft_actors:
        yield None
        return
    roster = start_roster(settings, run, log_settings, num_generators)
    try:
        yield roster
    finally:
        ray.kill(roster)


def max_lanes(settings: GeneratorSettings) -> int:
    """Return how many lanes a draft actor keeps a cache for, over all generators that share it."""
    return (settings.most_lanes + _SPARE_LANES) * settings.drafts.num_sharing


def _start(options: dict[str, Any], settings: GeneratorSettings, run: str, log_settings: LogSettings) -> Any:
    from actors.drafts.actor import WEIGHTS, DraftActor  # loads torch and networks, in the roster's process alone

    # On a GPU if it holds one, whatever the target does.
    models = replace(settings.models, device="cuda" if settings.drafts.num_gpus else "cpu")
    actor = ray.remote(concurrency_groups={WEIGHTS: 1})(DraftActor).options(**options)
    return actor.remote(models, max_lanes(settings), run, log_settings)


def _arrived(references: list[Any]) -> list[Any]:
    return list(ray.wait(references, num_returns=len(references), timeout=0)[0]) if references else []


def _is_placed(group: Any) -> bool:
    """Return whether all of a placement group is placed. `group.wait(0)` often returns False for one that is."""
    return bool(placement_group_table(group)["state"] == "CREATED")
