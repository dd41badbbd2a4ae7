"""HandOuts: which unit of a run the feed hands out next, and what it is told meanwhile."""

from collections.abc import Callable
from math import inf

from actors.units.places import PlaceTable
from actors.units.unit_record import Signal, UnitRecord
from pipeline.id_set import IdSet
from pipeline.inputs.units import WorkUnit
from pipeline.streaming.calls import UnitCall

Request = tuple[str, int]  # a feed, and the number of its request


class HandOuts:
    """The units that are under way, those that were given back, and how many have not begun. A base of the ledger."""

    def __init__(self, places: PlaceTable, max_waiting: int) -> None:
        """Begin without units. At most `max_waiting` units are handed out and not begun."""
        self._places, self._max_waiting = places, max_waiting
        self._units: dict[int, UnitRecord] = {}  # handed out or begun, not finished
        self._finished = IdSet()
        self._returned: dict[int, None] = {}  # to be handed out again, in this order
        self._num_waiting = 0
        self._is_stopping = False
        self._has_feed_ended = False
        self._answered: tuple[Request, UnitCall | Signal] = (("", -1), Signal.WAIT)  # the feed's last request

    def stop(self) -> None:
        """Stop the run: no unit begins any more."""
        self._is_stopping = True

    def is_stopping(self) -> bool:
        """Return whether the run was stopped."""
        return self._is_stopping

    def hand_out(self, unit: WorkUnit, request: Request | None = None) -> UnitCall | Signal:
        """Return GO if the unit may be handed out now, or the call of a unit that was given back and goes first.

        Return WAIT where too many units wait already, and STOP where the run stops.
        A unit that was handed out or finished before gets GO again. Requests of one feed have rising numbers.
        """
        return self._once(request, lambda: self._hand_out(unit))

    def _hand_out(self, unit: WorkUnit) -> UnitCall | Signal:
        if self._is_stopping:
            return Signal.STOP
        if unit.unit_id in self._finished or unit.unit_id in self._units:
            self._returned.pop(unit.unit_id, None)
            return Signal.GO
        if self._num_waiting >= self._max_waiting:
            return Signal.WAIT
        if (again := self._next_returned()) is not None:
            return again
        self._units[unit.unit_id] = UnitRecord(unit)
        self._num_waiting += 1
        return Signal.GO

    def hand_out_again(self, backups: bool, request: Request | None = None) -> UnitCall | Signal:
        """Return the next call after all units were handed out once, or WAIT, or STOP: there will be none.

        Units that were given back come first. Then come backups, if wanted: of units that have not begun (they wait
        behind a slow unit), then of those that have run for longest.
        """
        return self._once(request, lambda: self._hand_out_again(backups))

    def _hand_out_again(self, backups: bool) -> UnitCall | Signal:
        answer = (None if self._is_stopping else self._next_returned()) or self._next_backup(backups)
        self._has_feed_ended = answer is Signal.STOP
        return answer

    def _once(self, request: Request | None, answer: Callable[[], UnitCall | Signal]) -> UnitCall | Signal:
        """Answer each request once: a repeated one gets the same answer, and a late one gets WAIT."""
        if request is None:
            return answer()
        last, known = self._answered
        if request == last:
            return known
        if request[0] == last[0] and request[1] < last[1]:
            return Signal.WAIT  # nothing waits for it any more
        self._answered = request, answer()
        return self._answered[1]

    def _next_returned(self) -> UnitCall | None:
        for unit_id in self._returned:
            del self._returned[unit_id]
            unit = self._units[unit_id].unit
            assert unit is not None
            return UnitCall(unit)
        return None

    def _next_backup(self, backups: bool) -> UnitCall | Signal:
        if self._is_stopping or not self._units:
            return Signal.STOP
        candidates = [unit for unit in self._units.values() if backups and unit.may_be_backed_up]
        if not candidates:  # what a place gives back goes to the others, which must not end before
            return Signal.WAIT if self._places.failures() else Signal.STOP
        if self._places.num_free_places() <= sum(unit.is_on_its_way for unit in self._units.values()):
            return Signal.WAIT
        chosen = min(candidates, key=lambda unit: -inf if unit.began == inf else unit.began)
        assert chosen.unit is not None
        chosen.is_backed_up, chosen.is_declined = True, False
        return UnitCall(chosen.unit, is_backup=True)

    def _give_back(self, unit_id: int, unit: UnitRecord) -> None:
        if unit.unit is not None:
            self._returned.setdefault(unit_id)
