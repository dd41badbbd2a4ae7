"""PlaceTable: the processes of a run as places of work, with their units, their failures, and how many are idle.

A place that fails (its disk is full, its storage read-only, its device broken, its models cannot be loaded) is not
a fault of its units. It rests, longer after each failure in a row, and then gets one unit as a trial. A card that
failed over two units gets no more, unless it is the only one, or one of the units makes other cards fail, too.
"""

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from math import inf

# Seconds after which an idle process gets a backup: a unit that was just handed out takes some time to reach it.
_IDLE_AFTER_S = 1.0
_FIRST_REST_S, _LONGEST_REST_S, _MOST_DOUBLINGS = 10.0, 300.0, 5
_DRAINED = "its node is being drained"
_MOST_FAULTS = 2  # of a card, over units of which none makes another card fail
_MOST_IN_A_ROW = 5  # of a card, over any units; a row that makes cards fail is condemned after fewer


@dataclass
class Place:
    """A process. `failure` is why it gets no units now, and `leaves` whether its node is being drained."""

    idle_since: float
    node: str = ""
    actor: str = ""  # a process that joins with the same one has taken its place
    card: str = ""  # its GPU, for people, and told from all others; empty if it has none
    units: set[int] = field(default_factory=set)
    backups: set[int] = field(default_factory=set)
    failure: str | None = None
    failed_at: float = inf
    rests_until: float = -inf
    num_failures: int = 0  # in a row
    leaves: bool = False

    @property
    def is_well(self) -> bool:
        """Whether it gets units."""
        return self.failure is None and not self.leaves


class PlaceTable:
    """Places by their process; each works on `units_in_flight` units at once, of its own or backups of others' units.

    A process that cannot go on ends, and another one takes its place: failures of such processes add up by node.
    """

    def __init__(self, units_in_flight: int, clock: Callable[[], float]) -> None:
        """Begin without places. `clock` returns seconds."""
        self._units_in_flight, self._clock = units_in_flight, clock
        self._places: dict[str, Place] = {}
        self._num_broken: dict[str, int] = {}  # processes in a row that could not go on, by node
        self.replaced: set[str] = set()  # processes in whose place is another one; they may not know it
        self.causes: dict[str, str] = {}  # of the last failure on each node
        self._failures: set[tuple[str, str]] = set()  # that were reported, by process and report
        self.has_been_well = False
        self.faults: dict[str, dict[str, set[int]]] = {}  # of each card that was seen, by process: the units it was at
        self._in_a_row: Counter[str] = Counter()  # faults of a card since it did anything
        self._node_of: dict[str, str] = {}  # each card that was seen
        self._names: dict[str, list[str]] = {}  # of each process, also once it is gone: itself, its actor, its card
        self._at_fault: dict[str, str] = {}  # processes, actors on their nodes, and cards, each with what it did

    def num_well(self) -> int:
        """Return the number of places that get units."""
        left_out = self.cards_left_out()
        return sum(place.is_well and place.card not in left_out for place in self._places.values())

    def num_failed(self) -> int:
        """Return the number of places that have failed."""
        return sum(place.failure is not None for place in self._places.values())

    def join(self, process: str, node: str = "", actor: str = "", card: str = "") -> Place:
        """Add a process, if it is not there, in the place of the one that had its actor. Return its place."""
        if process in self.replaced:
            return Place(self._clock())
        for name in [name for name, place in self._places.items() if actor and place.actor == actor]:
            if name != process:
                self.leave(name)
                self.replaced.add(name)
        place = self._places.setdefault(process, Place(self._clock()))
        place.node, place.actor, place.card = node or place.node, actor or place.actor, card or place.card
        if card:
            self.faults.setdefault(card, {})
            self._node_of[card] = place.node
        actor_there = [f"{place.actor} on {place.node}"] * bool(place.actor)
        self._names[process] = [process, *actor_there, *[place.card] * bool(place.card)]
        if (cause := self.fault_of(process)) is not None and place.rests_until < inf:
            place.failure, place.failed_at, place.rests_until = cause, min(place.failed_at, self._clock()), inf
        return place

    def accuse(self, process: str, cause: str) -> None:
        """Give a place no more units, nor its actor on its node, nor its card, since what it writes is wrong."""
        self._at_fault.update(dict.fromkeys(self._names.get(process, [process]), cause))
        for each in [each for each in self._places if self.fault_of(each) is not None]:
            self.join(each)

    def fault_of(self, process: str) -> str | None:
        """Return what a process, or its place, has written that is wrong; None if nothing is known."""
        names = self._names.get(process, [process])
        return next((self._at_fault[name] for name in names if name in self._at_fault), None)

    def card_failed(
        self, process: str, unit_id: int, cleared: Collection[str], is_node_alive: Callable[[str], bool]
    ) -> str:
        """Record that the card of a process failed over a unit; return the card, empty where no other can be tried.

        Of the cards in `cleared` no failure counts that came in a row until now: a row explains them.
        """
        card = self.join(process).card
        if card:
            self._in_a_row[card] += process not in self.faults[card]
            self.faults[card].setdefault(process, set()).add(unit_id)
        for each in cleared:
            self._in_a_row.pop(each, None)
        return card if self.cards_left(is_node_alive) - {card} else ""

    def card_works(self, process: str) -> str:
        """Record that a process has finished rows on its card, and return the card."""
        card = self.join(process).card
        self._in_a_row.pop(card, None)
        return card

    def cards_left_out(self) -> list[str]:
        """Return the cards that get no units.

        They failed twice over units that no other card has failed over, or so often in a row that no row explains it.
        """
        cards_of: dict[int, set[str]] = {}
        for card, faults in self.faults.items():
            for unit_id in set[int]().union(*faults.values()):
                cards_of.setdefault(unit_id, set()).add(card)
        own = {unit_id for unit_id, cards in cards_of.items() if len(cards) == 1}
        num_own = {card: sum(units <= own for units in faults.values()) for card, faults in self.faults.items()}
        return [
            card
            for card, num in num_own.items()
            if (num >= _MOST_FAULTS and len(num_own) > 1)
            or self._in_a_row[card] >= _MOST_IN_A_ROW + (len(num_own) == 1)
        ]

    def cards_left(self, is_node_alive: Callable[[str], bool]) -> set[str]:
        """Return the cards of living nodes that may get units."""
        return {card for card, node in self._node_of.items() if is_node_alive(node)}.difference(self.cards_left_out())

    def left_out_in_words(self) -> list[str]:
        """Return a sentence for each card that gets no units."""
        cards = [f"{card} failed again and again, and gets no more units" for card in self.cards_left_out()]
        return [*cards, *dict.fromkeys(self._at_fault.values())]

    def should_avoid(self, process: str, card: str, failed_at: float, is_node_alive: Callable[[str], bool]) -> bool:
        """Tell whether a process has this card, and one with another card gets units, or will after its rest.

        It is no longer so some minutes after the failure: cards that wait for each other's units would wait for ever.
        """
        none, now = {card, "", *self.cards_left_out()}, self._clock()
        if not card or self.join(process).card != card or now >= failed_at + _LONGEST_REST_S:
            return False
        return any(
            place.card not in none and not place.leaves and is_node_alive(place.node)
            for place in self._places.values()
            if place.is_well or now < place.rests_until + _LONGEST_REST_S
        )

    def leave(self, process: str) -> None:
        """Remove a process that has died."""
        self._places.pop(process, None)

    def dismiss(self) -> set[str]:
        """Remove all processes, and return their names."""
        names = set(self._places)
        self.replaced |= names
        self._places.clear()
        return names

    def take(self, process: str, unit_id: int, is_backup: bool) -> None:
        """Record that a process begins a unit."""
        place = self.join(process)
        (place.backups if is_backup else place.units).add(unit_id)

    def release(self, process: str, unit_id: int) -> None:
        """Record that a process has left a unit, if it worked on it."""
        place = self._places.get(process)
        if place is None:
            return
        place.backups.discard(unit_id)
        if unit_id in place.units:
            place.units.remove(unit_id)
            place.idle_since = self._clock()

    def succeeded(self, process: str) -> None:
        """Record that a process has committed a unit, which ends its failure."""
        if (place := self._places.get(process)) is not None and self.fault_of(process) is None:
            self.has_been_well = True
            place.failure, place.failed_at, place.num_failures, place.rests_until = None, inf, 0, -inf
            self._num_broken.pop(place.node, None)

    def fail(self, process: str, report: str, cause: str, is_broken: bool) -> bool:
        """Let a process rest; return False if this report was taken before. `is_broken`: it ends after its rest.

        Units that fail together, or while it rests, are one failure.
        """
        if (process, report) in self._failures:
            return False
        self._failures.add((process, report))
        place, now = self.join(process), self._clock()
        if process in self.replaced or now < place.rests_until:
            return True
        self.causes[place.node or process] = cause
        place.failure, place.failed_at = cause, min(place.failed_at, now)
        place.num_failures += 1
        num = place.num_failures
        if is_broken:
            num = self._num_broken[place.node] = self._num_broken.get(place.node, 0) + 1
        place.rests_until = now + min(_FIRST_REST_S * 2.0 ** min(num - 1, _MOST_DOUBLINGS), _LONGEST_REST_S)
        return True

    def drain(self, nodes: Collection[str]) -> set[str]:
        """Let the processes of these nodes get no more units; return those that learn of it now."""
        leaving = {name for name, place in self._places.items() if place.node in nodes and not place.leaves}
        for name in leaving:
            self._places[name].leaves = True
        return leaving

    def is_leaving(self, process: str) -> bool:
        """Tell whether the node of a process is being drained."""
        place = self._places.get(process)
        return place is not None and place.leaves

    def may_begin(self, process: str) -> bool:
        """Tell whether a process may begin a unit: it is well, or it has rested and has no other unit."""
        place = self._places.get(process)
        if place is not None and place.card in self.cards_left_out():
            return False
        if place is None or place.is_well:
            return True
        return not place.leaves and not place.units and self._clock() >= place.rests_until

    def is_well(self, process: str) -> bool:
        """Tell whether a process is there and gets units."""
        place = self._places.get(process)
        return place is not None and place.is_well and place.card not in self.cards_left_out()

    def may_audit(self, process: str) -> bool:
        """Tell whether a process may judge a unit: it is there and well, or it has rested and has no unit."""
        return process in self._places and self.may_begin(process)

    def is_on_trial(self, process: str) -> bool:
        """Tell whether a process has failed and nothing has shown yet that it is well again."""
        place = self._places.get(process)
        return place is not None and place.failure is not None

    def are_of_two_actors(self, process: str, other: str) -> bool:
        """Tell whether both processes are there, and one is not the next life of the other."""
        actors = [place.actor for name in (process, other) if (place := self._places.get(name)) is not None]
        return all(actors) and len(set(actors)) == 2

    def all_failed_since(self, is_node_alive: Callable[[str], bool]) -> float:
        """Return since when all places on living nodes have failed; infinity if one has not, or if there is none."""
        failed_at = [place.failed_at for place in self._places.values() if place.failure is not None]
        left_out = self.cards_left_out()
        others = (place for place in self._places.values() if place.failure is None and place.card not in left_out)
        return inf if not failed_at or any(is_node_alive(place.node) for place in others) else max(failed_at)

    def failures(self) -> list[str]:
        """Return why places get no units now, one cause a node, in the order in which they failed."""
        failed = sorted(self._places.items(), key=lambda item: item[1].failed_at)
        causes = {
            place.node or name: place.failure or f"{_DRAINED}: {place.node}"
            for name, place in failed
            if not place.is_well
        }
        return list(causes.values())

    def num_free_places(self) -> int:
        """Return the free places of well processes that have had no unit of their own for a moment."""
        now, left_out = self._clock(), self.cards_left_out()
        return sum(
            self._units_in_flight - len(place.backups)
            for place in self._places.values()
            if place.is_well
            and place.card not in left_out
            and not place.units
            and now - place.idle_since >= _IDLE_AFTER_S
        )
