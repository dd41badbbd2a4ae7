"""AuditTable: the units of a run that were drawn for an audit, who judges each, and what came of it."""

import hmac
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import inf

from pipeline.inputs.units import WorkUnit

_LOST_AFTER_S = 30.0  # without a word, a process that audits a unit is taken for dead; it says a word every 2 seconds
_MOST_BEGUN = 4  # audits of a unit that came to no end
_BITS = 64


@dataclass
class Audit:
    """A unit that is to be audited, by none of the processes that may have written it, each given with its node.

    `told_by` is the process that said that it is committed.
    """

    unit: WorkUnit
    holders: Mapping[str, str]
    told_by: str
    opened_at: float
    auditor: str | None = None
    num_begun: int = 0

    def suspect(self, writer: str | None) -> str | None:
        """Return which process wrote the unit, if that is known; the part itself says that it was `writer`."""
        if self.told_by not in self.holders or writer in self.holders:
            return writer
        return self.told_by


class AuditTable:
    """Which unit is drawn follows from its number and a secret, which never leaves this object.

    So no process can tell, when it writes a unit, whether it will be audited. The table keeps the units that were
    written and not audited, by their process: they are audited, too, if it turns out to be at fault.
    """

    def __init__(self, fraction: float, timeout_s: float, clock: Callable[[], float], secret: bytes = b"") -> None:
        """Begin without units. `clock` returns seconds; the secret is drawn unless one is given, for tests."""
        self.fraction, self._timeout_s, self._clock = fraction, timeout_s, clock
        self._secret = secret or secrets.token_bytes(32)
        self._open: dict[int, Audit] = {}
        self._written: dict[str, dict[int, tuple[WorkUnit, str]]] = {}  # by process, with its node
        self._seen: dict[str, tuple[float, str]] = {}  # when a process that may audit said its last word; its node
        self._moved_at = -inf  # when a process last said that it is at an audit
        self.counts = {"num_audits": 0, "num_failed_audits": 0, "num_lost_audits": 0}

    def is_drawn(self, unit_id: int) -> bool:
        """Tell whether a unit is audited in any case."""
        digest = hmac.digest(self._secret, str(unit_id).encode(), "sha256")
        return int.from_bytes(digest[: _BITS // 8]) < self.fraction * 2**_BITS

    def __bool__(self) -> bool:
        """Return whether audits are to be made, or go on."""
        return bool(self._open)

    def __contains__(self, unit_id: int) -> bool:
        return unit_id in self._open

    def written(self, unit: WorkUnit, holders: Mapping[str, str], process: str, *, is_suspect: bool) -> None:
        """Take a unit that is committed, as a process says. It is audited if it is drawn, or if it `is_suspect`.

        `holders` are the processes to which the unit was given, with their nodes. What none of them says to have
        committed is audited as well, since it is not known who wrote it.
        """
        if is_suspect or process not in holders or self.is_drawn(unit.unit_id):
            self.open(unit, holders, process)
        else:
            self._written.setdefault(process, {})[unit.unit_id] = unit, holders[process]

    def open(self, unit: WorkUnit, holders: Mapping[str, str], told_by: str) -> None:
        """Let a unit be audited."""
        self._open.setdefault(unit.unit_id, Audit(unit, holders, told_by, self._clock()))

    def next(self, process: str, node: str) -> WorkUnit | None:
        """Return a unit for a process that may audit now, of none of its own; None if there is none.

        It is of another node while a process there may audit, too: what is wrong may be wrong on all of a node.
        """
        now = self._clock()
        self._seen[process] = now, node
        alive = {name: there for name, (at, there) in self._seen.items() if now - at < _LOST_AFTER_S}
        for audit in self._open.values():
            own = set(audit.holders.values())
            is_taken = audit.auditor in alive and audit.auditor != process
            is_elsewhere = node not in own or all(there in own for there in alive.values())
            if is_taken or process in audit.holders or not is_elsewhere:
                continue
            audit.auditor, self._moved_at = process, now
            audit.num_begun += 1
            return audit.unit
        return None

    def of(self, unit_id: int, process: str) -> Audit | None:
        """Return the audit of a unit, if it is this process that makes it, which thereby says that it is at it."""
        audit = self._open.get(unit_id)
        if audit is None or audit.auditor != process:
            return None
        self._moved_at = self._clock()
        self._seen[process] = self._moved_at, self._seen.get(process, (0.0, ""))[1]
        return audit

    def give_up(self, unit_id: int, process: str) -> bool:
        """Take an audit that came to no end from its process; return whether no other is to try it either."""
        audit = self.of(unit_id, process)
        if audit is None:
            return False
        audit.auditor = None
        if audit.num_begun >= _MOST_BEGUN:
            self.close(unit_id, "num_lost_audits")
        return audit.num_begun >= _MOST_BEGUN

    def close(self, unit_id: int, count: str) -> None:
        """End the audit of a unit, and count it under this name."""
        del self._open[unit_id]
        self.counts[count] += 1

    def accuse(self, process: str) -> None:
        """Let all units be audited that a process has written and no other has audited; it audits none itself."""
        self._release(process)
        for unit, node in self._written.pop(process, {}).values():
            self.open(unit, {process: node}, process)

    def forget(self, processes: Iterable[str]) -> None:
        """Take the audits of processes that are gone from them."""
        for process in processes:
            self._release(process)

    def _release(self, process: str) -> None:
        self._seen.pop(process, None)
        for audit in self._open.values():
            audit.auditor = None if audit.auditor == process else audit.auditor

    def is_stuck(self) -> bool:
        """Tell whether audits wait, and no process was at one, for longer than a run waits for a place."""
        opened_at = min((audit.opened_at for audit in self._open.values()), default=inf)
        return self._clock() - max(opened_at, self._moved_at) >= self._timeout_s + _LOST_AFTER_S
