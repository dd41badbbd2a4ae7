"""Backups of the last units: which process gets one, of which unit, and which process stays responsible."""

from actors.units.ledger import Ledger
from actors.units.unit_record import Attempt, Signal
from pipeline.inputs.units import WorkUnit
from pipeline.streaming.calls import UnitCall
from tests.clock import Clock
from tests.pipeline.made_up import unit


def ledger_of(num_units: int, units_in_flight: int = 1) -> tuple[Ledger, Clock]:
    """Return a ledger that has handed out these units, and its clock."""
    clock = Clock()
    ledger = Ledger(lambda node: node != "lost", units_in_flight=units_in_flight, clock=clock)
    for unit_id in range(num_units):
        assert ledger.hand_out(unit(unit_id)) is Signal.GO
    return ledger, clock


def backup_of(ledger: Ledger) -> WorkUnit | Signal:
    """Return the unit that the ledger hands out a second time, or its signal."""
    call = ledger.hand_out_again(backups=True)
    return call.unit if isinstance(call, UnitCall) else call


def test_no_more_than_max_waiting_units_wait():
    ledger = Ledger(lambda node: True, max_waiting=2)
    assert [ledger.hand_out(unit(unit_id)) for unit_id in range(3)] == [Signal.GO, Signal.GO, Signal.WAIT]
    ledger.begin(1, 3, "a", "node")
    assert [ledger.hand_out(unit(unit_id)) for unit_id in (2, 3)] == [Signal.GO, Signal.WAIT]
    ledger.finish(0)  # without having begun: its part was there
    assert ledger.hand_out(unit(3)) is Signal.GO
    assert ledger.hand_out(unit(4)) is Signal.WAIT
    again = [ledger.hand_out(unit(unit_id)) for unit_id in (0, 1, 2)]
    assert again == [Signal.GO] * 3, "a source that begins again"
    ledger.stop()
    assert ledger.hand_out(unit(4)) is Signal.STOP


def test_only_a_process_that_was_idle_for_a_moment_gets_a_backup():
    ledger, clock = ledger_of(2)
    ledger.begin(0, 3, "a", "node")
    ledger.begin(1, 3, "b", "node")
    clock.now = 60.0
    assert backup_of(ledger) is Signal.WAIT, "both are at work"
    ledger.finish(1)
    assert backup_of(ledger) is Signal.WAIT, "b may be about to get another"
    clock.now = 62.0
    assert backup_of(ledger) == unit(0)
    assert backup_of(ledger) is Signal.STOP, "one backup is enough"


def test_a_process_that_is_ready_and_never_had_a_unit_gets_a_backup():
    ledger, clock = ledger_of(1)
    ledger.begin(0, 3, "a", "node")
    ledger.join("b")
    clock.now = 2.0
    assert backup_of(ledger) == unit(0)


def test_units_that_have_not_begun_are_backed_up_first_then_those_that_have_run_for_longest():
    ledger, clock = ledger_of(4, units_in_flight=4)
    for now, unit_id in ((1.0, 2), (2.0, 0), (3.0, 1)):
        clock.now = now
        ledger.begin(unit_id, 3, "slow", "node")
    ledger.join("idle")
    clock.now = 9.0
    assert [backup_of(ledger) for _ in range(5)] == [unit(3), unit(2), unit(0), unit(1), Signal.STOP]


def test_an_idle_process_gets_as_many_backups_as_it_has_calls():
    ledger, clock = ledger_of(5, units_in_flight=2)
    for unit_id in range(5):
        ledger.begin(unit_id, 3, "slow", "node")
    ledger.join("idle")
    clock.now = 2.0
    assert [backup_of(ledger) for _ in range(3)] == [unit(0), unit(1), Signal.WAIT]
    assert ledger.begin(0, 3, "idle", "node", True) == Attempt(1, is_careful=False)
    assert backup_of(ledger) is Signal.WAIT, "the other backup is still on its way"
    ledger.finish(0)
    assert backup_of(ledger) == unit(2)


def test_a_process_does_not_back_up_a_unit_of_its_own():
    ledger, clock = ledger_of(2)
    ledger.begin(0, 3, "a", "node")
    ledger.begin(1, 3, "a", "node")
    ledger.join("b")
    clock.now = 2.0
    assert backup_of(ledger) == unit(0)
    assert ledger.begin(0, 3, "a", "node", True) is None
    assert backup_of(ledger) == unit(1), "the refused backup occupies no process"
    assert ledger.summary() == {
        "num_repeated_units": 0,
        "num_deaths": 0,
        "num_condemned_rows": 0,
        "num_backups": 0,
        "num_handed_back": 0,
    }


def test_a_backup_is_no_death_and_no_attempt_begins_after_the_commit():
    ledger, _ = ledger_of(1)
    assert ledger.begin(0, 3, "b", "node", True) == Attempt(0, is_careful=False)
    assert ledger.begin(0, 3, "a", "node") == Attempt(0, is_careful=False)
    assert not ledger.is_finished(0)
    ledger.finish(0)
    assert ledger.is_finished(0)
    assert ledger.begin(0, 3, "c", "node") is None
    assert ledger.begin(0, 3, "c", "node", True) is None
    assert ledger.next_group(0, "", 0) is None, "a careful attempt learns that it is over"
    ledger.finish(0)
    assert (ledger.summary()["num_deaths"], ledger.summary()["num_backups"]) == (0, 1)


def test_a_backup_that_kills_counts_and_is_not_repeated():
    ledger, _ = ledger_of(1)
    ledger.begin(0, 4, "a", "node")
    ledger.begin(0, 4, "b", "node", True)
    assert ledger.begin(0, 4, "b2", "node", True) is None
    assert ledger.summary()["num_deaths"] == 1
    assert ledger.begin(0, 4, "a2", "node") == Attempt(1, is_careful=True), "two processes died over it"
    assert ledger.next_group(0, "", 0) is not None


def test_a_backup_whose_node_was_lost_may_begin_again():
    ledger, _ = ledger_of(1)
    ledger.begin(0, 4, "a", "node")
    ledger.begin(0, 4, "b", "lost", True)
    assert ledger.begin(0, 4, "b2", "node", True) == Attempt(1, is_careful=False)
    assert ledger.summary()["num_deaths"] == 0


def test_another_process_gets_the_backup_that_a_place_failed_over():
    ledger, clock = ledger_of(1)
    ledger.begin(0, 4, "a", "node")
    for process in ("b", "c"):
        ledger.join(process, f"node of {process}")
    clock.now = 5.0
    assert backup_of(ledger) == unit(0)
    ledger.begin(0, 4, "b", "node of b", True)
    assert backup_of(ledger) is Signal.STOP
    ledger.place_failed("b", "node of b", "disk full", report="one", unit_id=0)
    assert backup_of(ledger) == unit(0)


def test_a_unit_that_a_process_died_over_gets_no_backup():
    ledger, clock = ledger_of(1)
    ledger.begin(0, 4, "a", "node")
    ledger.join("idle")
    ledger.begin(0, 4, "b", "node")
    clock.now = 5.0
    assert backup_of(ledger) is Signal.STOP


def test_a_run_that_stops_begins_and_backs_up_no_unit():
    ledger, clock = ledger_of(1)
    ledger.join("idle")
    clock.now = 5.0
    ledger.stop()
    assert ledger.begin(0, 4, "idle", "node") is None
    assert backup_of(ledger) is Signal.STOP


def test_a_finished_unit_is_forgotten():
    ledger = Ledger(lambda node: True)
    for unit_id in range(1000):
        assert ledger.hand_out(unit(unit_id)) is Signal.GO
        ledger.begin(unit_id, 3, f"a{unit_id}", "node")
        ledger.begin(unit_id, 3, "b", "node")
        ledger.finish(unit_id)
    assert not ledger._units
    assert ledger.summary()["num_deaths"] == 1000
