"""Ledgers as actors: that of a run, those of several runs that one process drives side by side, or one in no actor.

The AuditedLedger lets a share of the units be audited by other places than wrote them, while the run goes on.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import ray

from actors.audits.table import AuditTable
from actors.resources import on_this_node
from actors.units.hand_outs import Request
from actors.units.ledger import Ledger
from actors.units.unit_record import Signal, UnitRecord
from pipeline.inputs.units import WorkUnit
from pipeline.streaming.calls import UnitCall


class AuditedLedger(Ledger):
    """A ledger that lets another place audit some of the units that are committed (docs/adr/0077).

    The call that brought a unit waits for its audit (`verdict`). A unit that fails is done again, and its place gets no
    more units; what that wrote before is audited, too.
    """

    def __init__(self, *arguments: Any, audit_fraction: float = 0.0, secret: bytes = b"", **options: Any) -> None:
        """Begin an empty record that audits this share of the units; the other arguments are those of a Ledger."""
        super().__init__(*arguments, **options)
        self._audits = AuditTable(audit_fraction, self._places_timeout_s, self._clock, secret)
        self._names: dict[str, str] = {}  # of processes, for people
        self._reopened: set[int] = set()  # units that failed, and are to be done again

    def finish(self, unit_id: int, process: str = "") -> None:
        """Record that the unit is committed, as Ledger does, and let it be audited if it is to be."""
        unit = self._units.get(unit_id)
        super().finish(unit_id, process)
        self._reopened.discard(unit_id)
        if self._audits.fraction and unit is not None and unit.unit is not None:
            holders = {worker.process: worker.node for worker in unit.workers}
            is_suspect = any(self._places.fault_of(each) is not None for each in holders)
            self._audits.written(unit.unit, holders, process, is_suspect=is_suspect)

    def next_audit(self, process: str, node: str, name: str) -> WorkUnit | None:
        """Return a unit that a process is to audit now, or None. `name` tells its place to people."""
        self._names[process] = name
        for audit in self._audits.hopeless():
            text = f"unit {audit.unit.unit_id} was not audited, since no audit of it came to an end: {audit.failure}"
            self.warn(text, text)
        return self._audits.next(process, node) if self._places.may_audit(process) else None

    def audits(self, unit_id: int, process: str) -> bool:
        """Return whether it is this process that audits a unit. It asks every few seconds, or loses the audit."""
        return self._audits.of(unit_id, process) is not None

    def audit_ended(self, unit_id: int, process: str, problem: str | None, writer: str | None) -> bool:
        """Take the verdict on a unit: its problem, or None; and which process the part says to be written by.

        Return whether this process is to move the part away, and to say so (`reopen`). If the part is its own
        after all, another process audits it.
        """
        audit = self._audits.of(unit_id, process)
        if audit is None:
            return False
        if writer == process:
            self._audits.is_of(audit, process)
            return False
        if problem is None:
            self._audits.close(audit, "num_audits")
        elif (suspect := audit.writer or writer) is not None:
            self._accuse(suspect, f"unit {unit_id}, {problem}")
        return problem is not None

    def audit_lost(self, unit_id: int, process: str, failure: str) -> None:
        """Let another process audit a unit that this one could not."""
        if (audit := self._audits.of(unit_id, process)) is not None:
            audit.auditor, audit.failure = None, failure

    def reopen(self, unit_id: int, process: str) -> None:
        """Let a unit be done again, whose part was moved away after its audit by this process."""
        if (audit := self._audits.of(unit_id, process)) is not None:
            self._audits.close(audit, "num_failed_audits")
            self._finished.discard(unit_id)
            self._reopened.add(unit_id)
            self._units[unit_id] = unit = UnitRecord(audit.unit)
            self._num_waiting += 1
            self._give_back(unit_id, unit)

    def verdict(self, unit_id: int) -> Signal | str:
        """Return what becomes of the call that brought a unit: WAIT, GO: it is done, or STOP: it is to be done again.

        A text says why the run ends: the places that were asked for have failed, but for one. Others may yet come.
        """
        if unit_id not in self._audits.open:
            return Signal.GO if unit_id in self._finished else Signal.STOP
        if not self._audits.is_stuck():
            return Signal.WAIT
        said = (
            "no other place than its own was there to audit a unit (run.audit_fraction), for longer than "
            f"run.places_timeout_s, {self._places_timeout_s:g} seconds"
        )
        if self._places.num_failed() < self._num_places - 1:
            self.warn(said, f"{said}; the run waits for one")
            return Signal.WAIT
        return f"{said}: {'; '.join(dict.fromkeys([*self._places.failures(), *self._places.left_out_in_words()]))}"

    def has_ended(self) -> bool:
        """Return whether no unit is to be audited, or done again after its audit."""
        return not self._audits.open and not self._reopened

    def dismiss(self) -> None:
        """Remove all processes, as Ledger does; units that failed their audit are handed out by the next feed."""
        super().dismiss()
        self._audits.forget(list(self._names))
        for unit_id in self._reopened:
            self._give_back(unit_id, self._units[unit_id])

    def summary(self) -> dict[str, int]:
        """Return the run's counts, those of audits among them."""
        return super().summary() | self._audits.counts

    def _once(self, request: Request | None, answer: Callable[[], UnitCall | Signal]) -> UnitCall | Signal:
        return super()._once(request, lambda: self._unless_open(answer()))

    def _unless_open(self, answer: UnitCall | Signal) -> UnitCall | Signal:
        """Keep the feed open, and idle processes with it, while units may yet be audited or done again."""
        if answer is not Signal.STOP or not self._audits.fraction:
            return answer
        workers = (each for unit in self._units.values() for each in unit.workers)
        is_at_work = any(self._places.is_well(each.process) for each in workers)
        if not (self._audits.open or (is_at_work if self._is_stopping else self._units)):
            return answer
        self._has_feed_ended = False
        return Signal.WAIT

    def _accuse(self, process: str, what: str) -> None:
        """Give the place of a process no more units, and let what it wrote be audited."""
        name = self._names.get(process) or "a place that is gone"
        cause = f"{name} wrote what the target does not write ({what}), and gets no more units"
        if self._places.fault_of(process) is None:
            self._places.accuse(process, cause)
            self.warn(cause, cause)
        for unit_id in list(self._units):
            self._take_back(process, unit_id, has_died=False, where="")
        for each in [process, *self._audits.writers()]:
            if self._places.fault_of(each) is not None:
                self._audits.accuse(each)


class RunLedger(AuditedLedger):
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
