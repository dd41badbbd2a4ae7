"""Ledger: the record of which process was given, has begun and has finished which unit of a run.

It finds the rows that kill their process, and idle processes for the units of slow ones. Ray repeats a call whose
process died, without end for a row that kills. So a worker asks the ledger, an actor beside the driver, before each
unit. After two deaths over a unit, the unit runs carefully: alone in its process, a few rows at a time, each group
announced here first. The group that was announced when a process died is suspect, and runs row by row. A row that ran
alone when two processes died is condemned: it becomes an error row, its neighbours do not.

The death of a process with its node, and a call that Ray repeats for another reason, count against no row.
A place that fails, and not its unit, gives the unit back: the feed hands it out again, to another place
(`actors.units.places`). A node that is drained gives all its units back.

When every unit has been handed out and a process has been idle for a moment, an unfinished unit is handed out again, to
that process: a backup (the backup tasks of MapReduce, Dean and Ghemawat 2004, section 3.6; docs/adr/0014). The first
commit wins. The first call stays responsible for the unit, so a backup is dropped, not repeated, once a process died
over the unit.

A call whose connection broke may have come and comes again, perhaps late. So each method may be called twice: a
call that must not count twice carries the name of its attempt or request. A process commits only what it still holds
here (`holds`), so one that was thought dead and comes back commits nothing.

The ledger reads no clock and no cluster but those it is given: the same calls make the same record. Of a finished unit
one bit is kept: the ledger grows with the units under way, with the deaths, and with the failures of places.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection
from math import inf

from actors.run_notes import RunNotes
from actors.units.hand_outs import HandOuts
from actors.units.places import PlaceTable
from actors.units.unit_record import Attempt, Group, Signal, UnitRecord, Worker

_CAREFUL_AFTER = 2  # deaths over a unit


class Ledger(HandOuts, RunNotes):
    """The record of one run's units, and its notes. Rows are numbered within their unit, from 0."""

    def __init__(
        self,
        is_node_alive: Callable[[str], bool] = lambda node: True,
        clock: Callable[[], float] = time.monotonic,
        *,
        units_in_flight: int = 1,
        max_waiting: int = 64,
        num_places: int = 1,
        places_timeout_s: float = inf,
    ) -> None:
        """Begin an empty record. `is_node_alive` tells whether the node of an id is part of the cluster.

        `clock` returns seconds. A process works on `units_in_flight` units at once. At most `max_waiting` units are
        handed out and not begun. The run ends when all places have failed for `places_timeout_s`, or as many as were
        asked for at the start, `num_places`, and none has ever been well.
        """
        HandOuts.__init__(self, PlaceTable(units_in_flight, clock), max_waiting)
        RunNotes.__init__(self)
        self._is_node_alive, self._clock = is_node_alive, clock
        self._num_places, self._places_timeout_s = num_places, places_timeout_s
        self._counts_of_finished = Counter(UnitRecord().counts())
        self._dead: set[str] = set()  # processes, each once, over however many units it died
        self._num_dead_reported = 0
        self._dismissed: set[str] = set()  # processes that did not die over what they held

    def join(self, process: str, node: str = "", actor: str = "", card: str = "") -> None:
        """Add a process that is ready to work, in the place of the one that had its actor before."""
        self._places.join(process, node, actor, card)
        self._places.has_been_well = True

    def num_joined(self) -> int:
        """Return the number of processes that get units: without those that died, failed, or are being drained."""
        return self._places.num_well()

    def place_failures(self, ever: bool = False) -> list[str]:
        """Return why places get no units now, each cause once, or the last cause on each node where one ever failed."""
        return [*self._places.causes.values(), *self._places.left_out_in_words()] if ever else self._places.failures()

    def dismiss(self) -> None:
        """Remove all processes, which will be replaced: the units that they leave count against no row."""
        self._dismissed |= self._places.dismiss()
        self._returned.clear()  # a new feed hands out all that is not finished
        self._has_feed_ended = False

    def begin(
        self,
        unit_id: int,
        num_rows: int,
        process: str,
        node: str,
        is_backup: bool = False,
        call: str = "",
        actor: str = "",
        card: str = "",
    ) -> Attempt | Signal | None:
        """Let an actor's process on a node begin a unit. Return None if it may not, and WAIT if its place has failed.

        It may not if the run is stopping, the unit is finished, or the process was replaced. It may not begin a backup
        of its own unit, or of a unit that a process died over. `call` names the attempt: the same one gets the same
        answer, and none after its process has lost the unit. Raises UnitAbandoned after too many deaths.
        """
        if self._is_stopping or unit_id in self._finished or process in self._places.replaced:
            return None
        self._places.join(process, node, actor, card)  # its own call of `join` may come later
        unit = self._units.setdefault(unit_id, UnitRecord())
        if call:
            if (held := next((worker for worker in unit.workers if worker.call == call), None)) is not None:
                return held.attempt
            if call in unit.ended_calls:
                return unit.ended_calls[call]
        before = unit.backup_worker if is_backup else unit.worker
        is_leaving = before is not None and before.process != process and self._places.is_leaving(before.process)
        if before is not None and not is_leaving and self._places.are_of_two_actors(before.process, process):
            return unit.refuse(call)  # it is from before the unit was handed out again; Ray repeats that of the other
        if not self._may_begin(unit_id, process):
            self.decline(unit_id, process)
            return unit.refuse(call, Signal.WAIT)
        if before is not None and is_leaving:
            unit.end(before, has_died=False)
            self._places.release(before.process, unit_id)
            before = None
        follows_death = before is not None and self._take_over(unit, before, process)
        if is_backup and (unit.num_deaths or (unit.worker is not None and unit.worker.process == process)):
            unit.is_declined = True
            return unit.refuse(call)
        unit.refuse_if_abandoned(unit_id)
        if unit.unit is not None and unit.began == inf:
            self._num_waiting -= 1
        unit.began = min(unit.began, self._clock())
        is_trial = self._places.is_on_trial(process)
        self._places.take(process, unit_id, is_backup)
        if not is_backup:  # that call is not repeated after a death, so the unit still needs another one
            self._returned.pop(unit_id, None)
        is_careful = unit.num_deaths >= _CAREFUL_AFTER  # a backup was refused then
        attempt = Attempt(unit.num_attempts, is_careful, follows_death, self._new_deaths(), is_trial)
        worker = Worker(process, node, call, attempt)
        if is_backup:
            unit.backup_worker = worker
            unit.num_backups += 1
        else:
            unit.begin(worker, num_rows)
        return attempt

    def holds(self, unit_id: int, process: str) -> bool:
        """Return whether a process may go on with a unit, and commit it: no other has finished it or taken it over."""
        unit = self._units.get(unit_id)
        return unit is not None and any(worker.process == process for worker in unit.workers)

    def next_group(self, unit_id: int, call: str, number: int) -> Group | None:
        """Return group `number` of the rows of a careful unit, when those before have finished.

        Return None if the unit is committed, or was taken from this attempt.
        """
        unit = self._units.get(unit_id)
        if unit is None or unit.worker is None or unit.worker.call != call:
            return None
        if 0 < number == unit.num_groups:
            unit.cards_that_work.add(self._places.card_works(unit.worker.process))
        return unit.next_group(number)

    def finish(self, unit_id: int, process: str = "") -> None:
        """Record that the unit is committed, and by which process, if that is known."""
        self._finished.add(unit_id)
        self._returned.pop(unit_id, None)
        unit = self._units.pop(unit_id, None)
        if unit is None:
            return  # a second backup ends, too
        if unit.unit is not None and unit.began == inf:
            self._num_waiting -= 1
        self._counts_of_finished.update(unit.counts())
        for worker in unit.workers:
            self._places.release(worker.process, unit_id)
            if worker.process == process:  # and not one that found the unit committed
                self._places.succeeded(process)
                if unit.untried is None:  # a careful unit may have finished no row
                    self._places.card_works(process)

    def is_finished(self, unit_id: int) -> bool:
        """Return whether the unit is committed."""
        return unit_id in self._finished

    def place_failed(
        self,
        process: str,
        node: str,
        cause: str,
        *,
        report: str,
        unit_id: int | None = None,
        is_broken: bool = False,
        actor: str = "",
        card: str = "",
    ) -> None:
        """Let a place that failed rest, and take its unit back, if the failure came with one.

        `report` names the failure, so that it counts once. `is_broken`: the process cannot go on, since a device failed
        or models could not be loaded. A unit that a device failed over may be to blame, as if its process had died.
        `card` is that device, another of which then does the unit, if there is one.
        """
        self._places.join(process, node, actor, card if unit_id is not None else "")
        if self._places.fail(process, report, cause, is_broken) and unit_id is not None:
            where = ""
            if is_broken and card and (unit := self._units.get(unit_id)) is not None:
                where = self._places.card_failed(process, unit_id, unit.cards_cleared_by(card), self._is_node_alive)
                unit.failed_card, unit.card_failed_at = card, self._clock()
                for each in self._places.left_out_in_words():
                    self.warn(each, each)
            self._take_back(process, unit_id, has_died=is_broken, where=where)
            self.decline(unit_id, process)  # it may have failed before it began

    def decline(self, unit_id: int, process: str) -> None:
        """Let the feed hand a unit out again, which its process cannot begin, unless another one has it.

        The process before, in whose place this one is, may have died over it.
        """
        if (unit := self._units.get(unit_id)) is None or process in self._places.replaced:
            return
        before = unit.worker
        is_here = before is None or before.process == process
        if before is not None and not is_here and not self._places.are_of_two_actors(before.process, process):
            self._take_over(unit, before, process)
        if unit.worker is None or (not is_here and self._places.is_leaving(unit.worker.process)):
            self._give_back(unit_id, unit)
        else:
            unit.is_declined = True  # if it was a backup, it is not on its way any more

    def drain(self, nodes: Collection[str]) -> None:
        """Let others begin the units of all processes on these nodes, which are about to go.

        A process goes on with its unit until another one begins it: if none does, it may be done in time.
        """
        leaving = self._places.drain(nodes)
        for unit_id, unit in self._units.items():
            if unit.worker is not None and unit.worker.process in leaving:
                unit.num_handed_back += 1
                self._give_back(unit_id, unit)

    def held(self, unit_id: int, process: str) -> Signal | str:
        """Return what a process does with a call that it holds because its place has failed.

        WAIT: go on holding it. GO: begin again. STOP: end the call, the unit is in other hands. A text: the run ends
        with this cause.
        """
        if self._is_stopping or unit_id in self._finished or process in self._places.replaced:
            return Signal.STOP
        causes, left_out = "; ".join(self._places.failures()), self._places.cards_left_out()
        if left_out and not self._places.cards_left(self._is_node_alive):
            return f"no card is left, since each has failed again and again: {'; '.join(left_out)} ({causes})"
        since = self._places.all_failed_since(self._is_node_alive)
        if not self._places.has_been_well and self._places.num_failed() >= self._num_places:
            return causes
        if self._clock() - since >= self._places_timeout_s:
            return f"no place was left for units for run.places_timeout_s, {self._places_timeout_s:g} seconds: {causes}"
        if unit_id in self._returned and self._has_feed_ended and since == inf:
            return Signal.STOP  # for a new pool, since this one's feed hands out nothing more
        if not self._may_begin(unit_id, process):
            return Signal.WAIT
        return Signal.GO if unit_id in self._returned or unit_id not in self._units else Signal.STOP

    def summary(self) -> dict[str, int]:
        """Return the run's counts: attempts beyond the first, rows condemned, backups, units given back, deaths."""
        summary = self._counts_of_finished.copy()
        for unit in self._units.values():
            summary.update(unit.counts())
        return {**summary, "num_deaths": len(self._dead)}

    def _may_begin(self, unit_id: int, process: str) -> bool:
        """Tell whether a process may begin a unit: not on the card that failed over it, while there is another one."""
        unit = self._units.get(unit_id, UnitRecord())
        failed = unit.failed_card, unit.card_failed_at
        return self._places.may_begin(process) and not self._places.should_avoid(process, *failed, self._is_node_alive)

    def _new_deaths(self) -> int:
        """Return the number of known deaths that no attempt has reported yet."""
        num_new, self._num_dead_reported = len(self._dead) - self._num_dead_reported, len(self._dead)
        return num_new

    def _take_over(self, unit: UnitRecord, before: Worker, process: str) -> bool:
        """Take the unit from the attempt that left it unfinished. Return whether its process died over it."""
        if has_died := before.process != process:
            self._places.leave(before.process)
            has_died = before.process not in self._dismissed and self._is_node_alive(before.node)
            if has_died:
                self._dead.add(before.process)
        unit.end(before, has_died=has_died)
        return has_died

    def _take_back(self, process: str, unit_id: int, *, has_died: bool, where: str) -> None:
        """Take a unit from a process that still runs, and let the feed hand it out again."""
        unit = self._units.get(unit_id)
        for worker in [] if unit is None else [each for each in unit.workers if each.process == process]:
            assert unit is not None
            if worker is unit.backup_worker:
                unit.is_backed_up = False  # another process may get one
            else:
                unit.num_handed_back += 1
                self._give_back(unit_id, unit)
            unit.end(worker, has_died=has_died, where=where)
            self._places.release(process, unit_id)
