"""Units that are audited while a run goes on: which ones, by whom, what comes of it, and that every run ends."""

from math import inf

import pytest

from actors.audits.table import AuditTable
from actors.units.ledgers import AuditedLedger
from actors.units.unit_record import Signal
from pipeline.streaming.calls import UnitCall
from tests.clock import Clock
from tests.pipeline.made_up import unit


@pytest.fixture
def clock() -> Clock:
    """A clock that stands still."""
    return Clock()


def ledger_of(clock: Clock, num_units: int = 2, processes: str = "ab", **options: float) -> AuditedLedger:
    """Return a ledger that audits all units, with these processes, which has handed out some."""
    options = {"audit_fraction": 1.0, "places_timeout_s": 60.0, **options}
    ledger = AuditedLedger(lambda node: node != "lost", clock, num_places=2, secret=b"secret", **options)
    for process in processes:
        ledger.join(process, f"node of {process}", f"actor of {process}")
        asks(ledger, process)
    for unit_id in range(num_units):
        assert ledger.hand_out(unit(unit_id)) is Signal.GO
    return ledger


def asks(ledger: AuditedLedger, process: str) -> int | None:
    """Let a process ask for a unit to audit, and return which one it gets."""
    found = ledger.next_audit(process, f"node of {process}", f"host of {process}")
    return None if found is None else found.unit_id


def write(ledger: AuditedLedger, unit_id: int, process: str, told_by: str | None = None) -> None:
    """Let a process write a unit, which it says to be committed, unless another one does."""
    assert ledger.begin(unit_id, 3, process, f"node of {process}", call=f"{unit_id} by {process}") is not None
    ledger.finish(unit_id, process if told_by is None else told_by)


def fails(ledger: AuditedLedger, unit_id: int, auditor: str, writer: str = "a") -> None:
    """Let a unit fail its audit, and be moved away."""
    assert ledger.audit_ended(unit_id, auditor, "row x, token 3", writer)
    ledger.reopen(unit_id, auditor)


def test_which_units_are_drawn_follows_from_a_secret_and_is_about_the_share_that_is_asked_for() -> None:
    drawn = [{i for i in range(4000) if AuditTable(0.25, 1.0, Clock(), secret).is_drawn(i)} for secret in (b"a", b"b")]
    assert [0.22 < len(each) / 4000 < 0.28 for each in drawn] == [True, True]
    assert 0.05 < len(drawn[0] & drawn[1]) / 4000 < 0.08, "another secret draws others"
    tables = [AuditTable(0.5, 1.0, Clock()) for _ in range(2)]
    assert len({tuple(table.is_drawn(i) for i in range(200)) for table in tables}) == 2, "each run has its own"
    assert not any(AuditTable(0.0, 1.0, Clock()).is_drawn(i) for i in range(100))
    assert all(AuditTable(1.0, 1.0, Clock()).is_drawn(i) for i in range(100))


def test_a_call_waits_until_another_place_than_its_own_has_found_its_unit_right(clock: Clock) -> None:
    ledger = ledger_of(clock)
    write(ledger, 0, "a")
    assert ledger.verdict(0) is Signal.WAIT
    assert asks(ledger, "a") is None
    assert asks(ledger, "b") == 0
    assert not ledger.audit_ended(0, "a", "forged", "b"), "it is not its audit"
    for _ in range(2):  # its answer may be lost
        assert not ledger.audit_ended(0, "b", None, "a")
    assert ledger.verdict(0) is Signal.GO
    assert ledger.has_ended()
    assert ledger.summary()["num_audits"] == 1
    assert ledger.place_failures(ever=True) == []


def test_a_unit_that_fails_is_done_elsewhere_and_its_place_is_named_and_gets_no_more(clock: Clock) -> None:
    ledger = ledger_of(clock, 3, "abc")
    write(ledger, 0, "a")
    ledger.begin(1, 3, "a", "node of a", call="under way")
    assert asks(ledger, "b") == 0
    fails(ledger, 0, "b")
    assert ledger.verdict(0) is Signal.STOP
    assert not ledger.holds(1, "a"), "what it is at is taken from it"
    assert not ledger.has_ended()
    assert [ledger.hand_out_again(False) for _ in range(2)] == [UnitCall(unit(1)), UnitCall(unit(0))]
    assert ledger.begin(0, 3, "a", "node of a", call="again") is Signal.WAIT
    clock.now += 1e6
    assert ledger.held(2, "a") is Signal.WAIT, "it never gets a trial"
    ledger.join("a2", "node of a", "actor of a")
    assert ledger.begin(2, 3, "a2", "node of a", call="next life") is Signal.WAIT
    assert ledger.warnings() == ledger.place_failures(ever=True)
    assert ledger.warnings() == [
        "host of a wrote what the target does not write (unit 0, row x, token 3), and gets no more units"
    ]
    write(ledger, 0, "b")
    assert (asks(ledger, "a"), asks(ledger, "b"), asks(ledger, "c")) == (None, None, 0)
    ledger.audit_ended(0, "c", None, "b")
    assert ledger.verdict(0) is Signal.GO
    assert ledger.has_ended()
    assert [ledger.summary()[name] for name in ("num_audits", "num_failed_audits")] == [1, 1]


def test_what_a_place_wrote_before_it_was_found_at_fault_is_audited_too(clock: Clock) -> None:
    ledger = ledger_of(clock, 4, "abc", audit_fraction=0.5)
    drawn = [ledger._audits.is_drawn(number) for number in range(4)]
    assert drawn == [True, False, True, False]
    for number, process in enumerate("baaa"):
        write(ledger, number, process)
    assert [ledger.verdict(number) is Signal.GO for number in range(4)] == [False, True, False, True]
    assert asks(ledger, "c") == 0
    ledger.audit_ended(0, "c", None, "b")
    assert asks(ledger, "b") == 2
    fails(ledger, 2, "b")
    assert {asks(ledger, "b"), asks(ledger, "c")} == {1, 3}
    assert ledger.hand_out_again(False) == UnitCall(unit(2))
    assert ledger.hand_out_again(False) is Signal.WAIT, "the run must not end before"
    for number in (1, 3):
        auditor = "b" if ledger.audits(number, "b") else "c"
        ledger.audit_ended(number, auditor, None, "a")
    write(ledger, 2, "b")
    assert asks(ledger, "c") == 2
    ledger.audit_ended(2, "c", None, "b")
    assert ledger.hand_out_again(False) is Signal.STOP


@pytest.mark.parametrize("how", ["it fails", "it is at fault"])
def test_the_run_ends_with_an_error_if_no_other_place_is_left_to_audit(clock: Clock, how: str) -> None:
    ledger = ledger_of(clock)
    write(ledger, 0, "b" if how == "it is at fault" else "a")
    if how == "it fails":
        ledger.place_failed("b", "node of b", "no GPU", report="one", is_broken=True)
    else:
        assert asks(ledger, "a") == 0
        fails(ledger, 0, "a", writer="b")
        write(ledger, 0, "a")
    for _ in range(9):
        assert ledger.verdict(0) is Signal.WAIT
        clock.now += 10.0
        assert asks(ledger, "a") is None
        if how == "it is at fault":
            assert asks(ledger, "b") is None, "its question does not begin the time anew"
    said = ledger.verdict(0)
    assert isinstance(said, str)
    assert said.startswith("no other place than its own was there to audit a unit (run.audit_fraction), for longer")
    assert said.count("no GPU" if how == "it fails" else "host of b wrote") == 1


def test_an_audit_waits_for_a_place_that_is_not_there_yet_and_says_so(clock: Clock) -> None:
    ledger = ledger_of(clock, 1, "a")
    write(ledger, 0, "a")
    assert ledger.verdict(0) is Signal.WAIT
    assert ledger.warnings() == []
    clock.now += 90.0
    assert ledger.verdict(0) is Signal.WAIT, "the models of the other are still being loaded"
    assert [text.endswith("60 seconds; the run waits for one") for text in ledger.warnings()] == [True]
    ledger.join("b", "node of b", "actor of b")
    assert asks(ledger, "b") == 0


def test_a_place_that_has_failed_and_rested_audits_again(clock: Clock) -> None:
    ledger = ledger_of(clock)
    write(ledger, 0, "a")
    ledger.place_failed("b", "node of b", "disk full", report="one")
    assert asks(ledger, "b") is None
    clock.now += 10.0
    assert asks(ledger, "b") == 0, "no unit may be left by which it could show that it is well"


def test_what_earlier_processes_of_a_place_at_fault_wrote_is_audited_too(clock: Clock) -> None:
    ledger = ledger_of(clock, 3, "abc", audit_fraction=0.5)
    write(ledger, 1, "a")  # which is not drawn
    ledger.join("a2", "node of a", "actor of a")
    ledger.begin(2, 3, "a2", "node of a", call="next life")
    ledger.finish(2, "a2")
    assert asks(ledger, "b") == 2
    fails(ledger, 2, "b", writer="a2")
    assert asks(ledger, "c") == 1


def test_a_process_that_turns_out_to_have_written_a_unit_leaves_it_to_the_one_that_lost_it(clock: Clock) -> None:
    ledger = ledger_of(clock)
    write(ledger, 0, "a", told_by="")
    assert asks(ledger, "b") == 0
    assert not ledger.audit_ended(0, "b", None, "b")
    assert ledger.verdict(0) is Signal.WAIT
    assert asks(ledger, "b") is None
    assert asks(ledger, "a") == 0


def test_the_run_ends_if_all_places_are_at_fault(clock: Clock) -> None:
    ledger = ledger_of(clock, 3)
    for number, process in enumerate("ab"):
        ledger.begin(number, 3, process, f"node of {process}", call=process)
    ledger.finish(0, "a")
    ledger.finish(1, "b")
    assert (asks(ledger, "a"), asks(ledger, "b")) == (1, 0)
    assert ledger.audit_ended(0, "b", "forged", "a")
    assert not ledger.audit_ended(1, "a", "forged", "b"), "what a place says that is at fault does not count"
    ledger.reopen(0, "b")
    ledger._accuse("b", "forged")
    assert ledger.held(2, "a") is Signal.WAIT
    clock.now += 90.0
    assert all(name in str(ledger.held(2, "a")) for name in ("host of a", "host of b", "run.places_timeout_s"))
    assert isinstance(ledger.verdict(1), str)


def test_an_audit_goes_to_another_process_once_its_own_is_silent_and_is_given_up_after_several(clock: Clock) -> None:
    ledger = ledger_of(clock, 1, "abcdef")
    write(ledger, 0, "a")
    for process in "bcd":
        assert asks(ledger, process) == 0
        clock.now += 20.0
        assert ledger.audits(0, process)
        assert asks(ledger, "e") is None, "it is at it"
        clock.now += 31.0
        assert ledger.verdict(0) is Signal.WAIT
    assert asks(ledger, "f") == 0
    assert not ledger.audits(0, "d"), "one that comes back late has lost it"
    ledger.audit_lost(0, "f", "OSError: gone")
    assert ledger.verdict(0) is Signal.WAIT
    assert asks(ledger, "e") is None
    assert ledger.verdict(0) is Signal.GO
    assert ledger.warnings() == ["unit 0 was not audited, since no audit of it came to an end: OSError: gone"]
    assert ledger.summary()["num_lost_audits"] == 1


def test_a_unit_is_audited_on_another_node_while_one_has_a_process_that_is_there(clock: Clock) -> None:
    ledger = ledger_of(clock, 1, "abc")
    ledger.join("a2", "node of a", "actor of a2")
    write(ledger, 0, "a")
    assert ledger.next_audit("a2", "node of a", "") is None
    clock.now += 31.0  # the others are gone without a word
    found = ledger.next_audit("a2", "node of a", "")
    assert found is not None
    assert found.unit_id == 0


def test_a_unit_that_its_holder_does_not_say_to_have_committed_is_audited_whatever_was_drawn(clock: Clock) -> None:
    ledger = ledger_of(clock, 2, "abc", audit_fraction=1e-9)
    write(ledger, 0, "a")
    assert ledger.verdict(0) is Signal.GO
    write(ledger, 1, "a", told_by="")
    assert asks(ledger, "b") == 1
    fails(ledger, 1, "b", writer="c")
    assert ledger.warnings()[0].startswith("host of c wrote"), "it had lost the unit, and committed it late"


def test_a_process_audits_a_unit_that_was_its_own_once_the_backup_of_another_was_first(clock: Clock) -> None:
    ledger = ledger_of(clock, 1)
    ledger.begin(0, 3, "a", "node of a", call="first")
    ledger.begin(0, 3, "b", "node of b", True, "backup")
    ledger.finish(0, "b")
    assert asks(ledger, "b") is None
    assert asks(ledger, "a") == 0


def test_a_run_that_stops_hands_nothing_out_and_lets_audits_end(clock: Clock) -> None:
    ledger = ledger_of(clock, 2, "abc")
    write(ledger, 0, "a")
    ledger.begin(1, 3, "b", "node of b", call="one")
    ledger.place_failed("b", "node of b", "disk full", report="one", unit_id=1)
    ledger.stop()
    assert ledger.hand_out(unit(2)) is ledger.hand_out_again(False) is Signal.WAIT
    assert asks(ledger, "c") == 0
    fails(ledger, 0, "c")
    assert ledger.verdict(0) is Signal.STOP
    assert ledger.hand_out(unit(2)) is ledger.hand_out_again(False) is Signal.STOP


def test_a_run_that_stops_hands_out_no_unit_that_was_given_back(clock: Clock) -> None:
    ledger = ledger_of(clock, 2, audit_fraction=0.0)
    ledger.begin(0, 3, "a", "node of a", call="one")
    ledger.place_failed("a", "node of a", "disk full", report="one", unit_id=0)
    ledger.stop()
    assert ledger.hand_out_again(True) is Signal.STOP


def test_a_new_pool_gets_the_units_that_failed_although_their_receipts_may_have_come(clock: Clock) -> None:
    ledger = ledger_of(clock, 1, "ab")
    write(ledger, 0, "a")
    assert asks(ledger, "b") == 0
    fails(ledger, 0, "b")
    assert ledger.hand_out_again(False) == UnitCall(unit(0))
    ledger.dismiss()
    assert not ledger.audits(0, "b")
    assert ledger.hand_out_again(False) == UnitCall(unit(0))


def test_a_ledger_without_audits_keeps_nothing_of_units_that_are_finished(clock: Clock) -> None:
    ledger = ledger_of(clock, 2, audit_fraction=0.0, places_timeout_s=inf)
    write(ledger, 0, "a")
    write(ledger, 1, "a", told_by="")
    assert ledger.verdict(0) is Signal.GO
    assert ledger.hand_out_again(False) is Signal.STOP
    assert not ledger._audits._written
    assert ledger.has_ended()
