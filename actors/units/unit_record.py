"""UnitRecord: what a ledger knows of one unit that is not finished: who works on it, and who died over it."""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from math import inf, isqrt

from pipeline.inputs.units import WorkUnit

_CONDEMNED_AFTER = 2  # places where a process died over a row that ran alone
# Deaths over a unit after which the run fails: something else is wrong. A row that kills costs five (two among all
# rows, one in its group, two alone, of which the last condemns it), so this leaves room for several.
MAX_DEATHS = 24


class UnitAbandoned(RuntimeError):
    """More processes died over a unit than its rows can explain."""


class Signal(Enum):
    """The ledger's answer to a question whether something may be done now."""

    GO = "do it"
    WAIT = "ask again in a moment"
    STOP = "do nothing more"


@dataclass(frozen=True)
class Attempt:
    """The permission to begin a unit, and how."""

    number: int  # from 0
    is_careful: bool
    follows_death: bool = field(default=False, compare=False)  # the process that had the unit before died over it
    num_deaths: int = field(default=0, compare=False)  # that came to light since the last attempt began
    is_trial: bool = field(default=False, compare=False)  # of a place that has failed


@dataclass(frozen=True)
class Group:
    """The rows of a careful unit to run now, without others. No rows: none is suspect any more."""

    rows: tuple[int, ...]
    condemned: tuple[int, ...]  # rows that must not run again


@dataclass(frozen=True)
class Worker:
    """A process that works on a unit. `call` is the name of this attempt, by which a repeated question is known."""

    process: str
    node: str
    call: str
    attempt: Attempt


@dataclass
class UnitRecord:
    """A unit that was handed out or begun. Rows are numbered within it, from 0."""

    unit: WorkUnit | None = None  # as it was handed out
    began: float = inf  # when, by the ledger's clock
    num_attempts: int = 0  # backups not among them
    num_backups: int = 0
    num_deaths: int = 0  # of processes over it; a process that dies over several units counts in each
    num_handed_back: int = 0
    is_backed_up: bool = False  # handed out a second time
    is_declined: bool = False  # the process that got the backup was not allowed to begin it
    worker: Worker | None = None
    backup_worker: Worker | None = None
    ended_calls: dict[str, Signal | None] = field(default_factory=dict)  # and what each is answered
    untried: deque[tuple[int, ...]] | None = None  # groups of rows; None until the unit is careful
    num_groups: int = 0  # that the present attempt was given
    group: Group | None = None  # the last of them
    died_alone: dict[int, set[str]] = field(default_factory=dict)  # where, by row: processes, and cards that failed
    cards_that_work: set[str] = field(default_factory=set)  # that have finished a group of it
    failed_card: str = ""  # the last that failed over it
    card_failed_at: float = -inf  # when

    @property
    def workers(self) -> list[Worker]:
        """The processes that work on it now."""
        return [worker for worker in (self.worker, self.backup_worker) if worker is not None]

    @property
    def may_be_backed_up(self) -> bool:
        """Whether it was handed out once, and no process died over it."""
        return self.unit is not None and not self.is_backed_up and not self.num_deaths

    @property
    def is_on_its_way(self) -> bool:
        """Whether a backup was handed out and has not begun."""
        return self.is_backed_up and not self.is_declined and self.backup_worker is None

    @property
    def condemned(self) -> tuple[int, ...]:
        """The rows that must not run again."""
        return tuple(row for row, places in self.died_alone.items() if len(places) >= _CONDEMNED_AFTER)

    def cards_cleared_by(self, card: str) -> set[str]:
        """Return the cards whose failures a row explains, over which this card fails now.

        There are none unless the row runs alone, and made a card fail that has finished other rows of the unit.
        """
        if self.group is None or len(self.group.rows) != 1:
            return set()
        failed = {card, *self.died_alone.get(self.group.rows[0], ())}
        return failed if failed & self.cards_that_work else set()

    def counts(self) -> dict[str, int]:
        """Return what a run's summary adds up."""
        return {
            "num_repeated_units": max(0, self.num_attempts - 1 - self.num_handed_back),
            "num_condemned_rows": len(self.condemned),
            "num_backups": self.num_backups,
            "num_handed_back": self.num_handed_back,
        }

    def refuse_if_abandoned(self, unit_id: int) -> None:
        """Raise UnitAbandoned after too many deaths."""
        if self.num_deaths >= MAX_DEATHS:
            raise UnitAbandoned(
                f"{self.num_deaths} processes died over unit {unit_id}; no single row explains that: look at the "
                "memory of the nodes and at the workers' logs"
            )

    def refuse(self, call: str, answer: Signal | None = None) -> Signal | None:
        """Answer an attempt that may not begin, and keep the answer: its process has left the unit when it hears it.

        If the question comes again, and late, it must not get the unit, which the process does not wait for any more.
        """
        if call:
            self.ended_calls[call] = answer
        return answer

    def begin(self, worker: Worker, num_rows: int) -> None:
        """Give the unit to a process, in groups of rows if its attempt is careful."""
        self.worker = worker
        self.num_attempts += 1
        self.num_groups, self.group = 0, None
        if worker.attempt.is_careful and self.untried is None:
            size = max(1, isqrt(num_rows))
            self.untried = deque(tuple(range(first, min(first + size, num_rows))) for first in range(0, num_rows, size))

    def next_group(self, number: int) -> Group:
        """Return group `number` of the present attempt, counted from 0: the last one again, or a new one."""
        assert self.untried is not None, "the unit is not careful"
        if number == self.num_groups:
            self.group = Group(self.untried.popleft() if self.untried else (), self.condemned)
            self.num_groups += 1
        assert self.group is not None
        assert number == self.num_groups - 1, "groups are asked for in order"
        return self.group

    def end(self, worker: Worker, *, has_died: bool, where: str = "") -> None:
        """Take the unit from a process that left it unfinished. `has_died`: over it, not with its node.

        `where` is the card that may have failed in place of a row, if there are others. Where it is empty, that is the
        process. A row that ran alone is condemned when two such places failed, and else runs alone once more: next, on
        another card, or after all others, which show in between that this place works. The rows of a group run alone
        after all others, too: rows that kill must not look like one sick place.
        """
        self.ended_calls[worker.call] = None
        suspects: tuple[int, ...] = ()
        if worker is self.backup_worker:
            self.backup_worker = None
        else:
            suspects = self.group.rows if self.group is not None else ()
            self.worker, self.group = None, None
        self.num_deaths += has_died
        if self.untried is None:
            return
        if not has_died:
            self.untried.extendleft([suspects] if suspects else [])
            return
        if len(suspects) == 1:
            self.died_alone.setdefault(suspects[0], set()).add(where or worker.process)
        rows = [(row,) for row in suspects if row not in self.condemned]
        (self.untried.extendleft if where and len(suspects) == 1 else self.untried.extend)(rows)
