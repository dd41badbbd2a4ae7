"""AuditTable: the units of a run that were drawn for an audit, who judges each, and what came of it."""

import hmac
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import inf

from pipeline.inputs.units import WorkUnit

_LOST_AFTER_S = 30.0  # without a word, a process that audits a unit is taken for dead; it says a word every 2 seconds
_MOST_BEGUN = 4  # audits of a unit that came to no end


@dataclass
class Audit:
    """A unit to be audited by none of the processes that may have written it, each given with its node.

    `writer` is the one that did, where that is known.
    """

    unit: WorkUnit
    holders: Mapping[str, str]
    writer: str | None
    opened_at: float
    auditor: str | None = None
    num_begun: int = 0
    failure: str = "its processes were lost"  # of the last audit that came to no end


class AuditTable:
    """Which unit is drawn follows from its number and a secret, which never leaves this object.

    So no process can tell, when it writes a unit, whether it will be audited. The table keeps the units that were
    written and not audited, by their process: they are audited, too, if it turns out to be at fault.
    """

    def __init__(self, fraction: float, timeout_s: float, clock: Callable[[], float], secret: bytes = b"") -> None:
        """Begin without units. `clock` returns seconds; the secret is drawn unless one is given, for tests."""
        self.fraction, self._timeout_s, self._clock = fraction, timeout_s, clock
        self._secret = secret or secrets.token_bytes(32)
        self.open: dict[int, Audit] = {}
        self._written: dict[str, dict[int, tuple[WorkUnit, str]]] = {}  # by process, with its node
        self._seen: dict[str, tuple[float, str]] = {}  # when a process that may audit said its last word; its node
        self._moved_at = -inf  # when a process last said that it is at an audit
        self.counts = {"num_audits": 0, "num_failed_audits": 0, "num_lost_audits": 0}

    def is_drawn(self, unit_id: int) -> bool:
        """Tell whether a unit is audited in any case."""
        digest = hmac.digest(self._secret, str(unit_id).encode(), "sha256")
        return int.from_bytes(digest[:8]) < self.fraction * 2**64

    def written(self, unit: WorkUnit, holders: Mapping[str, str], process: str, *, is_suspect: bool) -> None:
        """Take a unit that is committed, as a process says. It is audited if it is drawn, or if it `is_suspect`.

        `holders` are the processes to which the unit was given, with their nodes. What none of them says to have
        committed is audited as well, since it is not known who wrote it.
        """
        if process not in holders:
            self.open[unit.unit_id] = Audit(unit, holders, None, self._clock())
        elif is_suspect or self.is_drawn(unit.unit_id):
            self.open[unit.unit_id] = Audit(unit, {process: holders[process]}, process, self._clock())
        else:
            self._written.setdefault(process, {})[unit.unit_id] = unit, holders[process]

    def next(self, process: str, node: str) -> WorkUnit | None:
        """Return a unit for a process that may audit now, of none of its own; None if there is none.

        It is of another node while a process there may audit, too: what is wrong may be wrong on all of a node.
        """
        now = self._clock()
        self._seen[process] = now, node
        alive = self._alive()
        nodes = [there for _, there in alive.values()]
        for audit in self.open.values():
            own = audit.holders.values()
            is_elsewhere = node not in own or all(there in own for there in nodes)
            if audit.auditor not in alive and process not in audit.holders and is_elsewhere:
                audit.auditor, audit.num_begun, self._moved_at = process, audit.num_begun + 1, now
                return audit.unit
        return None

    def hopeless(self) -> list[Audit]:
        """Close the audits that several processes have begun and none has brought to an end, and return them."""
        alive = self._alive()
        found = [each for each in self.open.values() if each.num_begun >= _MOST_BEGUN and each.auditor not in alive]
        for audit in found:
            self.close(audit, "num_lost_audits")
        return found

    def of(self, unit_id: int, process: str) -> Audit | None:
        """Return the audit of a unit, if it is this process that makes it, which thereby says that it is at it."""
        audit = self.open.get(unit_id)
        if audit is None or audit.auditor != process:
            return None
        self._moved_at = self._clock()
        self._seen[process] = self._moved_at, self._seen[process][1]
        return audit

    def is_of(self, audit: Audit, process: str) -> None:
        """Let another process audit a unit that this one, which was to, turns out to have written."""
        audit.holders, audit.writer, audit.auditor = {process: self._seen[process][1]}, process, None
        audit.num_begun -= 1

    def close(self, audit: Audit, count: str) -> None:
        """End the audit of a unit, and count it under this name."""
        del self.open[audit.unit.unit_id]
        self.counts[count] += 1

    def writers(self) -> list[str]:
        """Return the processes that have written units which no other has audited."""
        return list(self._written)

    def accuse(self, process: str) -> None:
        """Let all units be audited that a process has written and no other has audited; it audits none itself."""
        self.forget([process])
        for unit, node in self._written.pop(process, {}).values():
            self.open[unit.unit_id] = Audit(unit, {process: node}, process, self._clock())

    def forget(self, processes: Iterable[str]) -> None:
        """Take the audits of processes that are gone, or at fault, from them."""
        for process in processes:
            self._seen.pop(process, None)
        for audit in self.open.values():
            audit.auditor = audit.auditor if audit.auditor in self._seen else None

    def is_stuck(self) -> bool:
        """Tell whether audits wait, and no process was at one, for longer than a run waits for a place."""
        opened_at = min((audit.opened_at for audit in self.open.values()), default=inf)
        return self._clock() - max(opened_at, self._moved_at) >= self._timeout_s + _LOST_AFTER_S

    def _alive(self) -> dict[str, tuple[float, str]]:
        return {name: seen for name, seen in self._seen.items() if self._clock() - seen[0] < _LOST_AFTER_S}
