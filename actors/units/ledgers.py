"""Ledgers as actors: that of a run, those of several runs that one process drives side by side, or one in no actor."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import ray

from actors.resources import on_this_node
from actors.units.ledger import Ledger


class RunLedger(Ledger):
    """A ledger that sees the nodes of the cluster."""

    def __init__(self, **options: Any) -> None:
        """Begin an empty record; `options` are those of a Ledger."""
        super().__init__(_is_node_alive, **options)


class Ledgers:
    """A ledger for each run that is asked about, by the run's path."""

    def __init__(self, make: Callable[[], Ledger] = RunLedger) -> None:
        """Begin without runs; `make` returns the empty ledger of another one."""
        self._make = make
        self._by_run: dict[str, Ledger] = {}

    def call(self, run: str, method: str, *arguments: Any, **named: Any) -> Any:
        """Return what this method of the run's ledger returns."""
        return getattr(self._by_run.setdefault(run, self._make()), method)(*arguments, **named)

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
        return SimpleNamespace(remote=partial(self.ledgers.call.remote, self.run, method))


@dataclass(frozen=True)
class LocalLedger:
    """A ledger in the process of its UnitWorker: like the handle of an actor, with answers that are there at once."""

    ledger: Ledger

    def __getattr__(self, method: str) -> Any:
        called = getattr(self.ledger, method)
        return SimpleNamespace(remote=lambda *arguments, **named: _Answer(called(*arguments, **named)))


@dataclass(frozen=True)
class _Answer:
    value: Any

    def __await__(self) -> Generator[None, None, Any]:
        yield from ()
        return self.value


def start_ledgers() -> Any:
    """Return ledgers as an actor on this node, which lives as long as this process and is replaced if it dies."""
    return on_this_node(Ledgers, max_restarts=-1).remote()


def start_ledger(**options: Any) -> Any:
    """Return a new Ledger, with these options, as an actor on the driver's node, where it lives as long as the driver.

    Ray repeats the calls to it, whose connection may break, as long as it lives.
    """
    return on_this_node(RunLedger).remote(**options)


def _is_node_alive(node: str) -> bool:
    return any(known["NodeID"] == node and known["Alive"] for known in ray.nodes())
