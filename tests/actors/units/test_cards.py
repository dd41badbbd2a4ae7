"""A card that fails is told from a row that makes cards fail: no innocent row is condemned."""

from itertools import count

import pytest

from actors.units.ledger import Ledger
from actors.units.unit_record import Signal
from tests.actors.units.attempts import Died, run
from tests.clock import Clock

NUM_ROWS = 4
A, B = "GPU 0 of 10.0.0.1 (GPU-aaaa)", "GPU 0 of 10.0.0.2 (GPU-bbbb)"


class Cluster:
    """Actors, each with a card of its own; an actor whose device fails gets another process, on the same card."""

    def __init__(self, *cards: str, sick: set[str] | None = None, killers: set[int] | None = None) -> None:
        self.clock, self.numbers = Clock(), count()
        self.ledger = Ledger(clock=self.clock, num_places=len(cards))
        self.sick, self.killers = sick or set(), killers or set()
        self.processes = {card: f"{card}, first" for card in cards}
        self.faults: list[tuple[str, int]] = []  # cards and units
        self.resting = set[str]()  # cards, whose processes end then
        for card, process in self.processes.items():
            self.ledger.join(process, f"node of {card}", f"actor of {card}", card)

    def finish(self, unit_id: int) -> set[int]:
        """Have a unit done by the first actor that may; return the rows that were condemned."""
        for _ in range(4000):
            for card, process in list(self.processes.items()):
                if card in self.resting:
                    if (held := self.ledger.held(unit_id, process)) is Signal.WAIT:
                        continue
                    if isinstance(held, str):
                        raise RuntimeError(held)
                    self.resting.remove(card)
                    process = self.processes[card] = f"{card}, {next(self.numbers)}"
                call, where = f"{next(self.numbers)}", (f"node of {card}", f"actor of {card}")
                attempt = self.ledger.begin(unit_id, NUM_ROWS, process, where[0], False, call, where[1], card)
                if attempt is None or isinstance(attempt, Signal):
                    held = self.ledger.held(unit_id, process)
                    if isinstance(held, str):
                        raise RuntimeError(held)
                    continue
                try:
                    killers = (
                        set(range(NUM_ROWS)) if card in self.sick else self.killers if unit_id == 0 else set[int]()
                    )
                    condemned = run(self.ledger, attempt, unit_id, NUM_ROWS, killers, call)
                except Died:
                    self.faults.append((card, unit_id))
                    given = {"report": call, "unit_id": unit_id, "is_broken": True, "actor": where[1], "card": card}
                    self.ledger.place_failed(process, where[0], f"{card}: CUDA error", **given)
                    self.resting.add(card)
                    break
                self.ledger.finish(unit_id, process)
                assert condemned is not None
                return condemned
            self.clock.now += 10.0
        raise AssertionError("no process may begin the unit")


def test_a_card_that_failed_twice_is_left_out_and_named_and_no_row_is_condemned() -> None:
    cluster = Cluster(A, B, sick={A})
    assert [cluster.finish(unit_id) for unit_id in range(6)] == [set()] * 6
    assert cluster.faults == [(A, 0), (A, 1)]
    assert cluster.ledger.warnings() == [f"{A} failed again and again, and gets no more units"]
    assert f"{A} failed again and again, and gets no more units" in cluster.ledger.place_failures(ever=True)
    assert cluster.ledger.summary()["num_condemned_rows"] == 0


def test_a_unit_goes_to_another_card_than_the_one_that_failed_over_it() -> None:
    cluster = Cluster(A, B, killers={2})
    cluster.finish(0)
    assert [card for card, _ in cluster.faults] == [A, B, A, B, A]


def test_a_row_that_makes_two_cards_fail_is_condemned_alone_and_no_card_is_left_out() -> None:
    cluster = Cluster(A, B, killers={2})
    assert cluster.finish(0) == {2}
    assert [cluster.finish(unit_id) for unit_id in range(1, 4)] == [set()] * 3
    assert cluster.ledger.warnings() == []
    assert len(cluster.faults) == 5


def test_where_there_is_one_card_rows_are_condemned_after_two_processes() -> None:
    cluster = Cluster(A, killers={0, 3})
    assert cluster.finish(0) == {0, 3}
    assert cluster.finish(1) == set()
    assert len(cluster.faults) == 8


@pytest.mark.parametrize("cards", [(A,), (A, B)])
def test_two_rows_of_one_group_that_kill_are_condemned_and_no_card_is_left_out(cards: tuple[str, ...]) -> None:
    cluster = Cluster(*cards, killers={0, 1})
    assert cluster.finish(0) == {0, 1}
    assert cluster.finish(1) == set()
    assert cluster.ledger.warnings() == []


@pytest.mark.parametrize("cards", [(A,), (A, B)])
@pytest.mark.parametrize("killers", [{0, 1, 2}, {0, 1, 2, 3}, {0, 1, 2, 3, 4, 5}])
def test_many_rows_of_one_unit_that_kill_leave_no_card_out(cards, killers, monkeypatch):
    monkeypatch.setattr(f"{__name__}.NUM_ROWS", 16)
    cluster = Cluster(*cards, killers=killers)
    assert cluster.finish(0) == killers
    assert cluster.finish(1) == set()
    assert cluster.ledger.warnings() == []


def test_a_row_that_died_alone_on_one_card_twice_is_not_condemned() -> None:
    cluster = Cluster(A, B)
    ledger = cluster.ledger
    for number, card in enumerate([A, B, A, A, A]):  # the other card's node is being drained
        process = f"{card}, {number}"
        if card == A:
            ledger.drain([f"node of {B}"])
        attempt = ledger.begin(0, 1, process, f"node of {card}", False, f"{number}", f"actor of {card}", card)
        assert attempt is not None
        if attempt.is_careful:
            assert ledger.next_group(0, f"{number}", 0).condemned == ()
        given = {"report": f"{number}", "unit_id": 0, "is_broken": True, "actor": f"actor of {card}", "card": card}
        ledger.place_failed(process, f"node of {card}", "CUDA error", **given)
        cluster.clock.now += 1000.0
    assert ledger.summary()["num_condemned_rows"] == 0


def test_a_run_without_a_card_that_works_ends_and_names_them_all() -> None:
    cluster = Cluster(A, B, sick={A, B})
    with pytest.raises(
        RuntimeError, match=r"no card is left, since each has failed again and again: GPU 0 of 10.0.0.1 \(GPU-aaaa\)"
    ):
        list(map(cluster.finish, range(9)))
    assert sorted(cluster.ledger.warnings()) == [
        f"{card} failed again and again, and gets no more units" for card in (A, B)
    ]
    assert not any(map(cluster.ledger.is_finished, range(9))), "an innocent row may have become an error row"


def test_a_card_fails_once_with_all_units_in_flight() -> None:
    cluster = Cluster(A, B)
    for unit_id in range(3):
        where = cluster.processes[A], f"node of {A}"
        cluster.ledger.begin(unit_id, NUM_ROWS, *where, False, f"{unit_id}", f"actor of {A}", A)
    for unit_id in range(3):
        given = {"report": f"{unit_id}", "unit_id": unit_id, "is_broken": True, "actor": f"actor of {A}", "card": A}
        cluster.ledger.place_failed(*where, "CUDA error", **given)
    assert cluster.ledger.warnings() == []


def fail(ledger: Ledger, unit_id: int, card: str, number: int, num_rows: int = 1) -> None:
    """Let a new process of a card's actor begin a unit, alone if it is careful, and fail over it."""
    process, where = f"{card}, {number}", (f"node of {card}", f"actor of {card}")
    attempt = ledger.begin(unit_id, num_rows, process, where[0], False, f"{number}", where[1], card)
    assert attempt is not None
    assert not isinstance(attempt, Signal)
    if attempt.is_careful:
        ledger.next_group(unit_id, f"{number}", 0)
    given = {"report": f"{number}", "unit_id": unit_id, "is_broken": True, "actor": where[1], "card": card}
    ledger.place_failed(process, where[0], "CUDA error", **given)


def test_cards_that_hold_calls_of_units_over_which_they_failed_wait_for_each_other_some_minutes_at_most() -> None:
    cluster = Cluster(A, B)
    for unit_id, card in enumerate((A, B)):
        fail(cluster.ledger, unit_id, card, unit_id)
        cluster.ledger.join(f"{card}, again", f"node of {card}", f"actor of {card}", card)
    cluster.clock.now += 200.0
    assert [cluster.ledger.held(unit_id, f"{card}, again") for unit_id, card in enumerate((A, B))] == [Signal.WAIT] * 2
    cluster.clock.now += 200.0
    for unit_id, card in enumerate((A, B)):
        assert cluster.ledger.begin(
            unit_id, 1, f"{card}, again", f"node of {card}", False, "again", f"actor of {card}", card
        ) not in (None, Signal.WAIT)


def test_a_run_ends_where_each_card_of_a_living_node_is_left_out_though_there_were_others() -> None:
    cluster, gone = Cluster(A, B, sick={A}), set[str]()
    cluster.ledger._is_node_alive = lambda node: node not in gone
    assert [cluster.finish(unit_id) for unit_id in range(3)] == [set()] * 3
    gone.add(f"node of {B}")
    held = cluster.ledger.held(7, cluster.processes[A])
    assert isinstance(held, str)
    assert held.startswith(f"no card is left, since each has failed again and again: {A}")


def test_a_card_that_is_left_out_counts_as_no_place_that_gets_units() -> None:
    cluster = Cluster(A, B, sick={A})
    assert [cluster.finish(unit_id) for unit_id in range(3)] == [set()] * 3
    cluster.ledger.join(f"{A}, again", f"node of {A}", f"actor of {A}", A)
    assert cluster.ledger.num_joined() == 1
