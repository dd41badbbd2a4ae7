"""Ledgers: the ledgers of several runs in one actor, for a process that drives them side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.units.ledger import Ledger


class Ledgers:
    """A ledger for each run that is asked about, by the run's path."""

    def __init__(self, make: Callable[[], Ledger] = Ledger) -> None:
        """Begin without runs; `make` returns the empty ledger of another one."""
        self._make = make
        self._by_run: dict[str, Ledger] = {}

    def call(self, run: str, method: str, *arguments: Any) -> Any:
        """Return what this method of the run's ledger returns."""
        return getattr(self._by_run.setdefault(run, self._make()), method)(*arguments)

    def forget(self, run: str) -> None:
        """Drop the ledger of a run that has ended."""
        self._by_run.pop(run, None)


@dataclass(frozen=True)
class LedgerOfRun:
    """The ledger of one run as a UnitWorker asks it: like the handle of an actor of its own."""

    ledgers: Any  # the actor
    run: str

    def __getattr__(self, method: str) -> Any:
        if method.startswith("_"):
            raise AttributeError(method)
        return _Method(self, method)


@dataclass(frozen=True)
class _Method:
    of: LedgerOfRun
    name: str

    def remote(self, *arguments: Any) -> Any:
        return self.of.ledgers.call.remote(self.of.run, self.name, *arguments)


def start_ledgers() -> Any:
    """Return ledgers as an actor on this node, which lives as long as this process and is replaced if it dies."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(Ledgers).options(num_cpus=0, scheduling_strategy=here, max_restarts=-1).remote()
