"""Watches: threads beside a run that report missing room on the cluster and give back what dead actors held."""

from __future__ import annotations

import logging
import sys
import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Any, Self

import ray

from actors.resources import shortage
from actors.settings import GeneratorSettings
from actors.stages.places import give_back_orphans
from pipeline.logs import Event
from pipeline.streaming.pool import ActorPool

_LONGEST_PATIENCE_S = 600.0
_log = logging.getLogger(__name__)


class _Watch(ABC):
    """A thread that looks after something while its context is entered."""

    def __init__(self, name: str) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=name, daemon=True)

    def __enter__(self) -> Self:
        """Start the thread."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Tell the thread to end."""
        self._ended.set()

    @abstractmethod
    def _watch(self) -> None:
        """Look, now and then, until `_ended` is set."""


class ShortageWatch(_Watch):
    """A watch that prints what the cluster lacks for the pool when actors do not start.

    It prints after some seconds and then ever more rarely, until as many actors are ready as were asked for at once.
    """

    def __init__(
        self, pool: ActorPool, ledger: Any, settings: GeneratorSettings | None = None, patience_s: float = 20.0
    ) -> None:
        """Prepare to watch `pool`. `ledger` counts the actors that are ready; `settings` name what else they need."""
        self._pool, self._ledger, self._settings, self._patience_s = pool, ledger, settings, patience_s
        super().__init__("shortage-watch")

    def _watch(self) -> None:
        patience_s = self._patience_s
        while not self._ended.wait(patience_s):
            try:
                num_ready = ray.get(self._ledger.num_joined.remote())
                lack = shortage(self._pool, ray.nodes(), self._settings)
            except Exception:  # noqa: BLE001 - the run has just ended, and Ray with it
                return
            if num_ready >= self._pool.num_at_once:
                return
            if lack is not None:
                print(
                    f"waiting for actors, {num_ready} of {self._pool.num_at_once} ready: {lack}. An autoscaling "
                    "cluster adds nodes; else lower actors.initial_actors or min_actors, or what an actor takes",
                    file=sys.stderr,
                    flush=True,
                )
            patience_s = min(3 * patience_s, _LONGEST_PATIENCE_S)


class OrphanWatch(_Watch):
    """A watch that removes the placement groups of stages whose generators have died, so that new ones find room."""

    def __init__(self, period_s: float = 30.0) -> None:
        """Prepare to look every `period_s` seconds."""
        self._period_s = period_s
        super().__init__("orphan-watch")

    def _watch(self) -> None:
        while not self._ended.wait(self._period_s):
            try:
                give_back_orphans()
            except Exception:  # noqa: BLE001 - the cluster is busy, or the run has just ended; it looks again
                _log.debug(Event("orphans not looked for"), exc_info=True)
