"""A place that fails rests, gives its units to the others, and comes back; the run ends when none is left."""

from math import inf

import pytest

from actors.units.ledger import Ledger
from actors.units.unit_record import Signal
from pipeline.streaming.calls import UnitCall
from tests.clock import Clock
from tests.pipeline.made_up import unit


@pytest.fixture
def clock() -> Clock:
    """A clock that stands still."""
    return Clock()


def ledger_of(clock: Clock, num_units: int = 2, places_timeout_s: float = inf) -> Ledger:
    """Return a ledger with processes a and b, which has handed out these units."""
    ledger = Ledger(lambda node: node != "lost", clock, num_places=2, places_timeout_s=places_timeout_s)
    for process in "ab":
        ledger.join(process, f"node of {process}", f"actor of {process}")
    for unit_id in range(num_units):
        assert ledger.hand_out(unit(unit_id)) is Signal.GO
    return ledger


def fail(ledger: Ledger, process: str, unit_id: int | None, report: str, *, is_broken: bool = False) -> None:
    """Let a process report that its disk is full, or that it cannot go on."""
    cause = f"{process}: {'no device' if is_broken else 'disk full'}"
    ledger.place_failed(process, f"node of {process}", cause, report=report, unit_id=unit_id, is_broken=is_broken)


def test_the_unit_of_a_place_that_failed_goes_to_another_before_units_that_were_never_handed_out(clock: Clock) -> None:
    ledger = ledger_of(clock, 1)
    assert ledger.begin(0, 3, "a", "node of a", call="first") is not None
    fail(ledger, "a", 0, "one")
    assert not ledger.holds(0, "a"), "it may not commit it any more"
    assert ledger.hand_out(unit(1)) == UnitCall(unit(0))
    assert ledger.hand_out(unit(1)) is Signal.GO
    assert ledger.held(0, "a") is Signal.WAIT
    assert ledger.begin(0, 3, "b", "node of b", call="second") is not None
    ledger.finish(0, "b")
    assert ledger.held(0, "a") is Signal.STOP
    assert ledger.summary()["num_handed_back"] == 1
    assert ledger.summary()["num_deaths"] == ledger.summary()["num_repeated_units"] == 0


def test_a_place_gets_one_unit_as_a_trial_after_a_rest_that_grows_and_is_well_after_a_commit(clock: Clock) -> None:
    ledger = ledger_of(clock)
    rests = []
    for number in range(7):
        assert ledger.begin(0, 3, "a", "node of a", call=f"{number}").is_trial == bool(number)
        assert ledger.begin(1, 3, "a", "node of a", call=f"other {number}") is not None or number
        began = clock.now
        fail(ledger, "a", 0, f"{number}")
        while ledger.held(0, "a") is Signal.WAIT:
            clock.now += 1.0
            if number == 0:
                ledger.finish(1, "b")
        rests.append(clock.now - began)
    assert rests == [10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0]
    assert ledger.place_failures() == ["a: disk full"]
    ledger.begin(0, 3, "a", "node of a", call="last")
    ledger.finish(0, "a")
    assert ledger.place_failures() == []
    assert ledger.place_failures(ever=True) == ["a: disk full"]


def test_a_place_whose_processes_fail_for_days_still_rests(clock: Clock) -> None:
    ledger = ledger_of(clock)
    for number in range(2000):
        ledger.place_failed(f"process {number}", "node of a", "no device", report=f"{number}", is_broken=True)
    assert ledger.held(0, "process 1999") is Signal.WAIT


def test_a_process_whose_call_to_join_comes_late_takes_no_unit_from_one_that_lives(clock: Clock) -> None:
    ledger = ledger_of(clock)
    held = ledger.begin(0, 3, "a", "node of a", call="first", actor="actor of a")
    assert ledger.begin(0, 3, "c", "node of c", call="second", actor="actor of c") is None
    assert ledger.begin(0, 3, "a", "node of a", call="first", actor="actor of a") == held
    assert ledger.summary()["num_deaths"] == 0
    ledger.join("c", "node of c", "actor of c")
    assert ledger.begin(1, 3, "c", "node of c", call="third", actor="actor of c") is not None


def test_a_place_that_rests_gives_back_what_it_is_asked_to_begin(clock: Clock) -> None:
    ledger = ledger_of(clock)
    ledger.begin(0, 3, "a", "node of a", call="first")
    fail(ledger, "a", 0, "one")
    assert ledger.begin(1, 3, "a", "node of a", call="second") is Signal.WAIT
    assert [ledger.hand_out_again(False), ledger.hand_out_again(False)] == [UnitCall(unit(0)), UnitCall(unit(1))]
    assert ledger.hand_out_again(False) is Signal.WAIT, "the others must not end before"


def test_the_run_ends_when_all_places_have_failed_for_long_with_all_their_causes(clock: Clock) -> None:
    ledger = ledger_of(clock, places_timeout_s=60.0)
    ledger.begin(0, 3, "a", "node of a", call="first")
    fail(ledger, "a", 0, "one")
    clock.now = 1000.0
    assert ledger.held(0, "a") is Signal.GO, "b is well, and has not taken it"
    fail(ledger, "a", None, "two")
    fail(ledger, "b", None, "three")
    assert ledger.held(0, "a") is Signal.WAIT
    clock.now += 30.0
    fail(ledger, "b", None, "four")
    clock.now += 30.0
    said = ledger.held(0, "a")
    assert isinstance(said, str)
    assert "for run.places_timeout_s, 60 seconds: a: disk full; b: disk full" in said


def test_a_place_on_a_node_that_is_gone_is_no_place_that_is_left(clock: Clock) -> None:
    ledger = ledger_of(clock, places_timeout_s=60.0)
    ledger.join("b", "lost")
    fail(ledger, "a", None, "one")
    clock.now += 60.0
    assert isinstance(ledger.held(0, "a"), str)


def test_the_run_ends_at_once_if_no_process_could_load_its_models(clock: Clock) -> None:
    ledger = Ledger(clock=clock, num_places=2, places_timeout_s=60.0)
    ledger.hand_out(unit(0))
    fail(ledger, "a", None, "one", is_broken=True)
    assert ledger.held(0, "a") is Signal.WAIT, "another may be well"
    fail(ledger, "b", None, "two", is_broken=True)
    assert ledger.held(0, "a") == "a: no device; b: no device"


def test_a_unit_goes_to_others_from_a_process_that_has_no_models(clock: Clock) -> None:
    ledger = ledger_of(clock, 1)
    fail(ledger, "a", None, "one", is_broken=True)
    ledger.decline(0, "a")
    assert ledger.hand_out_again(True) == UnitCall(unit(0))


def test_a_device_that_fails_counts_as_a_death_over_its_unit_and_not_over_others(clock: Clock) -> None:
    ledger = ledger_of(clock)
    for number, process in enumerate("ab"):
        ledger.begin(0, 4, process, f"node of {process}", call=process)
        fail(ledger, process, 0, f"{number}", is_broken=True)
    clock.now += 1000.0
    assert ledger.begin(0, 4, "a", "node of a", call="careful").is_careful
    assert not ledger.begin(1, 4, "b", "node of b", call="other").is_careful


def test_a_node_that_is_drained_gives_its_units_back_at_once_and_gets_no_more(clock: Clock) -> None:
    ledger = ledger_of(clock, 3)
    ledger.begin(0, 3, "a", "node of a", call="first")
    ledger.begin(2, 3, "b", "node of b", call="first")
    for _ in range(2):
        ledger.drain(["node of a"])
    assert ledger.hand_out_again(False) == UnitCall(unit(0))
    assert ledger.hand_out_again(False) is Signal.WAIT, "unit 2 is on another node"
    assert ledger.summary()["num_handed_back"] == 1
    assert ledger.holds(0, "a"), "it may yet be done in time"
    assert ledger.begin(0, 3, "b", "node of b", call="second") is not None
    assert not ledger.holds(0, "a")
    assert ledger.summary()["num_deaths"] == ledger.summary()["num_repeated_units"] == 0
    assert ledger.begin(1, 3, "a", "node of a", call="second") is Signal.WAIT
    clock.now += 1e6
    assert ledger.held(1, "a") is Signal.WAIT, "it never gets a trial"


def test_a_call_left_from_before_ends_while_another_actor_has_the_unit(clock: Clock) -> None:
    ledger = ledger_of(clock)
    ledger.begin(0, 3, "a", "node of a", call="first")
    ledger.drain(["node of a"])
    ledger.begin(0, 3, "b", "node of b", call="second")
    ledger.join("a2", "another node", "actor of a")
    assert ledger.begin(0, 3, "a2", "another node", call="repeated by Ray") is None
    assert ledger.holds(0, "b")
    assert ledger.summary()["num_deaths"] == 0


def test_a_unit_over_which_a_place_failed_before_it_began_goes_to_another(clock: Clock) -> None:
    ledger = ledger_of(clock, 1)
    fail(ledger, "a", 0, "it could not look for the part")
    assert ledger.hand_out_again(False) == UnitCall(unit(0))


@pytest.mark.parametrize("has_models", [True, False])
def test_a_unit_goes_to_others_from_a_process_that_rests_when_the_one_before_died_over_it(clock, has_models) -> None:
    ledger = ledger_of(clock, 1)
    ledger.begin(0, 3, "a", "node of a", call="first")
    ledger.place_failed("a2", "node of a", "sick", report="one", is_broken=not has_models, actor="actor of a")
    if has_models:
        assert ledger.begin(0, 3, "a2", "node of a", call="repeated by Ray") is Signal.WAIT
    else:
        ledger.decline(0, "a2")
    assert ledger.hand_out_again(False) == UnitCall(unit(0))
    assert ledger.summary()["num_deaths"] == 1


def test_a_unit_of_which_only_a_backup_runs_is_still_handed_out(clock: Clock) -> None:
    ledger = ledger_of(clock, 1)
    fail(ledger, "a", 0, "one")
    assert ledger.begin(0, 3, "b", "node of b", True, "backup") is not None
    assert ledger.held(0, "b") is Signal.GO
    assert ledger.hand_out_again(False) == UnitCall(unit(0)), "Ray would not repeat the backup after a death"


def test_a_backup_that_a_resting_place_got_is_held_and_takes_no_place_of_others(clock: Clock) -> None:
    ledger = ledger_of(clock)
    for unit_id in range(2):
        ledger.begin(unit_id, 3, "a", "node of a", call=f"{unit_id}")
    clock.now = 5.0
    assert ledger.hand_out_again(True) == UnitCall(unit(0), is_backup=True)
    ledger.join("c", "node of c", "actor of c")
    fail(ledger, "c", None, "one")
    assert ledger.begin(0, 3, "c", "node of c", True, "backup") is Signal.WAIT
    assert ledger.hand_out_again(True) == UnitCall(unit(1), is_backup=True)
    clock.now += 10.0
    assert ledger.held(0, "c") is Signal.STOP


def test_late_words_of_a_process_that_was_replaced_change_no_place(clock: Clock) -> None:
    ledger = ledger_of(clock)
    ledger.join("a2", "another node", "actor of a")
    ledger.begin(0, 3, "a2", "another node", call="first")
    ledger.join("a", "node of a", "actor of a")
    ledger.place_failed("a", "node of a", "cut off", report="late", unit_id=0, actor="actor of a")
    assert (ledger.num_joined(), ledger.place_failures(), ledger.place_failures(ever=True)) == (2, [], [])
    assert ledger.begin(0, 3, "a", "node of a", call="its next one") is None
    assert ledger.begin(0, 3, "b", "node of b", call="left") is None, "a2 is still known to be another actor"
    assert ledger.holds(0, "a2")
    assert ledger.held(0, "a") is Signal.STOP


def test_units_that_fail_together_are_one_failure_of_their_place(clock: Clock) -> None:
    ledger = ledger_of(clock, 3)
    for unit_id in range(3):
        ledger.begin(unit_id, 3, "a", "node of a", call=f"{unit_id}")
    for unit_id in range(3):
        fail(ledger, "a", unit_id, f"{unit_id}")
    clock.now = 9.0
    assert ledger.held(0, "a") is Signal.WAIT
    clock.now = 10.0
    assert ledger.held(0, "a") is Signal.GO


def test_a_place_that_finds_a_unit_committed_is_not_well_yet(clock: Clock) -> None:
    ledger = ledger_of(clock)
    fail(ledger, "a", 0, "one")
    ledger.begin(1, 3, "b", "node of b", call="first")
    ledger.finish(1, "a")
    assert ledger.place_failures() == ["a: disk full"]


def test_a_place_that_fails_again_after_it_was_well_rests_again(clock: Clock) -> None:
    ledger = ledger_of(clock)
    for unit_id in range(2):
        ledger.begin(unit_id, 3, "a", "node of a", call=f"{unit_id}")
    fail(ledger, "a", 0, "one")
    ledger.finish(1, "a")
    assert ledger.place_failures() == []
    fail(ledger, "a", 0, "two")
    assert ledger.held(0, "a") is Signal.WAIT


def test_a_node_whose_process_broke_rests_shortly_again_after_it_was_well(clock: Clock) -> None:
    ledger = ledger_of(clock, 3)
    for number, process in enumerate(["a", "a2"]):
        ledger.join(process, "node of a", "actor of a")
        fail_there = {"report": f"{number}", "is_broken": True, "actor": "actor of a"}
        ledger.place_failed(process, "node of a", "no device", **fail_there)
        clock.now += 10.0
        assert ledger.begin(number, 3, process, "node of a", call=process).is_trial
        assert ledger.begin(2, 3, process, "node of a", call="another") is Signal.WAIT, "a trial is one unit"
        ledger.finish(number, process)


def test_a_place_that_rests_is_not_free_for_a_backup(clock: Clock) -> None:
    ledger = ledger_of(clock, 1)
    ledger.begin(0, 3, "a", "node of a", call="first")
    fail(ledger, "b", None, "one")
    clock.now = 5.0
    assert ledger.hand_out_again(True) is Signal.WAIT


def test_a_unit_of_a_node_that_drains_stays_with_the_feed_when_a_resting_place_gets_it(clock: Clock) -> None:
    ledger = ledger_of(clock, 1)
    ledger.begin(0, 3, "a", "node of a", call="first")
    ledger.drain(["node of a"])
    assert ledger.hand_out_again(False) == UnitCall(unit(0))
    fail(ledger, "b", None, "one")
    assert ledger.begin(0, 3, "b", "node of b", call="second") is Signal.WAIT
    assert ledger.holds(0, "a"), "it goes on until another one begins"
    assert ledger.hand_out_again(False) == UnitCall(unit(0))


def test_a_request_of_the_feed_that_arrives_late_takes_no_unit_away(clock: Clock) -> None:
    ledger = ledger_of(clock, 1)
    assert ledger.hand_out_again(False, ("feed", 1)) is Signal.STOP
    assert ledger.hand_out(unit(1), ("feed", 2)) is Signal.GO
    ledger.begin(0, 3, "a", "node of a", call="first")
    fail(ledger, "a", 0, "one")
    assert ledger.hand_out_again(False, ("feed", 1)) is Signal.WAIT
    assert ledger.hand_out(unit(2), ("feed", 3)) == UnitCall(unit(0))
    assert ledger.hand_out(unit(2), ("feed", 3)) == UnitCall(unit(0)), "the same again: the answer was lost"


def test_a_report_that_arrives_again_takes_no_unit_from_a_trial(clock: Clock) -> None:
    ledger = ledger_of(clock, 1)
    ledger.begin(0, 3, "a", "node of a", call="first")
    fail(ledger, "a", 0, "one")
    clock.now = 10.0
    assert ledger.begin(0, 3, "a", "node of a", call="second").is_trial
    fail(ledger, "a", 0, "one")
    assert ledger.holds(0, "a")


def test_a_unit_that_a_leaving_node_finishes_in_time_is_not_handed_out_again(clock: Clock) -> None:
    ledger = ledger_of(clock)
    ledger.begin(0, 3, "a", "node of a", call="first")
    ledger.drain(["node of a"])
    ledger.finish(0, "a")
    assert ledger.hand_out(unit(2)) is Signal.GO
    assert ledger.hand_out_again(False) is Signal.WAIT, "unit 1 may yet be given back"


def test_an_attempt_that_lost_its_unit_does_not_begin_it_again_when_its_question_arrives_late(clock: Clock) -> None:
    ledger = ledger_of(clock, 1)
    ledger.begin(0, 3, "a", "node of a", call="first")
    fail(ledger, "a", 0, "one")
    clock.now = 10.0
    assert ledger.begin(0, 3, "a", "node of a", call="first") is None
    assert not ledger.holds(0, "a"), "nothing of it would be done"


def test_a_call_whose_unit_was_given_back_after_the_feeds_end_ends_for_a_new_pool(clock: Clock) -> None:
    ledger = ledger_of(clock, 1)
    assert ledger.hand_out_again(False) is Signal.STOP
    ledger.begin(0, 3, "a", "node of a", call="first")
    fail(ledger, "a", 0, "one")
    assert ledger.held(0, "a") is Signal.STOP
    ledger.dismiss()
    ledger.begin(0, 3, "c", "node of c", call="of the new pool")
    fail(ledger, "c", 0, "two")
    assert ledger.held(0, "c") is Signal.WAIT, "its feed goes on"


def test_a_new_feed_that_hands_out_a_unit_that_was_given_back_hands_it_out_once(clock: Clock) -> None:
    ledger = ledger_of(clock, 1)
    ledger.begin(0, 3, "a", "node of a", call="first")
    fail(ledger, "a", 0, "one")
    assert ledger.hand_out(unit(0)) is Signal.GO
    assert ledger.hand_out_again(False) is Signal.WAIT
