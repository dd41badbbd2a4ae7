"""Ledgers: the ledgers of several runs in one actor, for a process that drives them side by side; or in no actor."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

from actors.units.ledger import Ledger, on_this_node


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
        return SimpleNamespace(remote=partial(self.ledgers.call.remote, self.run, method))


@dataclass(frozen=True)
class LocalLedger:
    """A ledger in the process of its UnitWorker: like the handle of an actor, with answers that are there at once."""

    ledger: Ledger

    def __getattr__(self, method: str) -> Any:
        called = getattr(self.ledger, method)
        return SimpleNamespace(remote=lambda *arguments: _Answer(called(*arguments)))


@dataclass(frozen=True)
class _Answer:
    value: Any

    def __await__(self) -> Generator[None, None, Any]:
        yield from ()
        return self.value


def start_ledgers() -> Any:
    """Return ledgers as an actor on this node, which lives as long as this process and is replaced if it dies."""
    return on_this_node(Ledgers, max_restarts=-1).remote()
