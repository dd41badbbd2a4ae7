"""The ledger condemns the rows that kill their process, and no others."""

import random

import pytest

from actors.units.ledger import Ledger
from actors.units.unit_record import MAX_DEATHS, Attempt, UnitAbandoned
from tests.actors.units.attempts import Died, run


@pytest.fixture
def ledger() -> Ledger:
    """A ledger of a cluster whose node stays."""
    return Ledger(lambda node: True)


def run_until_done(num_rows: int, killers: set[int]) -> tuple[Ledger, set[int], list[tuple[int, ...]]]:
    """Return the ledger, the rows that were condemned, and the rows that ran together at each death."""
    ledger, deaths = Ledger(lambda node: True), list[tuple[int, ...]]()
    while True:
        attempt = ledger.begin(0, num_rows, f"process-{len(deaths)}", "node")
        assert attempt is not None
        try:
            condemned = run(ledger, attempt, 0, num_rows, killers)
        except Died as death:
            deaths.append(death.rows)
            continue
        assert condemned is not None
        ledger.finish(0)
        return ledger, condemned, deaths


@pytest.mark.parametrize("num_rows", [1, 2, 7, 64, 256])
def test_the_row_that_kills_is_condemned_and_no_other(num_rows):
    for killer in {0, num_rows // 2, num_rows - 1}:
        ledger, condemned, deaths = run_until_done(num_rows, {killer})
        assert condemned == {killer}
        assert len(deaths) <= 5
        assert deaths[-2:] == [(killer,), (killer,)]
        assert ledger.summary()["num_condemned_rows"] == 1


@pytest.mark.parametrize("seed", range(5))
def test_several_killers_in_one_unit_are_condemned(seed):
    killers = set(random.Random(seed).sample(range(100), 4))
    assert run_until_done(100, killers)[1] == killers


def test_a_unit_without_killers_that_lost_two_processes_loses_no_row(ledger):
    assert ledger.begin(0, 4, "a", "node") == Attempt(0, is_careful=False)
    assert ledger.begin(0, 4, "b", "node") == Attempt(1, is_careful=False)
    assert ledger.begin(0, 4, "c", "node") == Attempt(2, is_careful=True)
    groups = []
    while (group := ledger.next_group(0, "", len(groups))) is not None and group.rows:
        groups.append(group.rows)
    assert groups == [(0, 1), (2, 3)]
    assert group is not None
    assert group.condemned == ()


def test_one_death_alone_condemns_no_row(ledger):
    for process in "abc":
        ledger.begin(0, 1, process, "node")
    assert ledger.next_group(0, "", 0).rows == (0,)
    ledger.begin(0, 1, "d", "node")
    again = ledger.next_group(0, "", 0)
    assert (again.rows, again.condemned) == ((0,), ())
    assert ledger.next_group(0, "", 1).condemned == ()


def test_a_death_with_the_node_counts_against_no_row():
    alive = {"spot", "other"}
    ledger = Ledger(alive.__contains__)
    for process in ("a", "b"):
        ledger.begin(0, 9, process, "other")
    ledger.begin(0, 9, "c", "spot")
    assert ledger.next_group(0, "", 0).rows == (0, 1, 2)
    alive.remove("spot")
    assert ledger.begin(0, 9, "d", "other") == Attempt(3, is_careful=True)
    assert ledger.next_group(0, "", 0).rows == (0, 1, 2), "the group is tried as it was"
    assert ledger.summary()["num_deaths"] == 2


def test_a_group_that_a_leaving_node_had_begun_is_tried_as_it_was_and_the_attempt_there_gets_no_other(ledger):
    for process in "abc":
        ledger.begin(0, 9, process, f"node of {process}", call=process, actor=process)
        ledger.place_failed(
            process, "", "no device", report="one", unit_id=0, is_broken=True
        ) if process < "c" else None
    assert ledger.next_group(0, "c", 0).rows == (0, 1, 2)
    ledger.drain(["node of c"])
    ledger.begin(0, 9, "d", "node of d", call="d", actor="d")
    assert ledger.next_group(0, "c", 1) is None
    assert ledger.next_group(0, "d", 0).rows == (0, 1, 2)


def test_a_call_that_is_repeated_in_the_same_process_is_no_death(ledger):
    for number in range(5):
        assert ledger.begin(0, 4, "a", "node") == Attempt(number, is_careful=False)


def test_a_unit_that_kills_too_many_processes_fails_the_run(ledger):
    for number in range(MAX_DEATHS):
        ledger.begin(0, 400, f"process-{number}", "node")
    with pytest.raises(UnitAbandoned, match=f"{MAX_DEATHS} processes died over unit 0"):
        ledger.begin(0, 400, "last", "node")


def test_the_attempt_that_brings_a_death_to_light_reports_it_once(ledger):
    attempts = [ledger.begin(0, 4, process, "node") for process in "aabb"]
    assert [attempt and attempt.num_deaths for attempt in attempts] == [0, 0, 1, 0]
    assert [attempt and attempt.follows_death for attempt in attempts] == [False, False, True, False]
    elsewhere = Ledger(lambda node: False)
    attempts = [elsewhere.begin(0, 4, process, "gone") for process in "ab"]
    assert [attempt and attempt.num_deaths for attempt in attempts] == [0, 0]


def test_a_process_that_dies_over_three_units_is_one_death_and_counts_in_each_unit(ledger):
    for unit_id in range(3):
        ledger.begin(unit_id, 4, "a", "node")
    attempts = [ledger.begin(unit_id, 4, "b", "node") for unit_id in range(3)]
    assert [attempt and attempt.num_deaths for attempt in attempts] == [1, 0, 0]
    assert all(attempt and attempt.follows_death for attempt in attempts)
    assert ledger.summary()["num_deaths"] == 1
    ledger.begin(0, 4, "c", "node")
    ledger.finish(1)
    assert ledger.summary()["num_deaths"] == 2, "b died over unit 0"
    assert ledger.begin(0, 4, "c", "node") == Attempt(3, is_careful=True), "two processes died over it"


def test_a_death_that_a_refused_backup_brings_to_light_is_reported_by_the_next_attempt(ledger):
    ledger.begin(0, 4, "a", "node")
    ledger.begin(0, 4, "b", "node", True)
    assert ledger.begin(0, 4, "c", "node", True) is None
    attempt = ledger.begin(1, 4, "c", "node")
    assert attempt is not None
    assert (attempt.num_deaths, attempt.follows_death) == (1, False)


def test_the_units_of_dismissed_processes_count_against_no_row():
    ledger = Ledger({"node"}.__contains__)
    for pool in range(5):
        assert ledger.begin(0, 4, f"process-{pool}", "node") == Attempt(pool, is_careful=False)
        ledger.dismiss()
        assert ledger.num_joined() == 0
    assert ledger.summary()["num_deaths"] == 0
    assert ledger.begin(0, 4, "process-0", "node") is None, "it was replaced, and does not know it"
    assert ledger.begin(0, 4, "the last one", "node") is not None
    assert ledger.begin(0, 4, "another one", "node").follows_death, "who came later did die"


def test_a_warning_of_each_kind_is_kept_once():
    ledger = Ledger(units_in_flight=1)
    ledger.warn("%r is slow", "'a' is slow")
    ledger.warn("no kernels", "no kernels")
    ledger.warn("%r is slow", "'b' is slow")
    assert ledger.warnings() == ["'a' is slow", "no kernels"]
