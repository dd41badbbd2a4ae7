"""The ledger condemns the rows that kill their process, and no others."""

import random

import pytest

from actors.units.ledger import MAX_DEATHS, Attempt, Ledger, UnitAbandoned


class Cluster:
    """Processes that ask the ledger, and die over some rows. Only the deaths are simulated."""

    def __init__(self, killers: set[int]) -> None:
        self.killers, self.alive, self.num_processes = killers, {"node"}, 0
        self.ledger = Ledger(self.alive.__contains__)
        self.ran_to_death: list[tuple[int, ...]] = []

    def run(self, unit_id: int, num_rows: int) -> tuple[set[int], set[int]]:
        """Return the rows that finished and the rows that were condemned."""
        while True:
            self.num_processes += 1
            done = self._attempt(unit_id, num_rows, f"process-{self.num_processes}")
            if done is not None:
                self.ledger.finish(unit_id)
                return done

    def _attempt(self, unit_id: int, num_rows: int, process: str) -> tuple[set[int], set[int]] | None:
        attempt = self.ledger.begin(unit_id, num_rows, process, "node")
        assert attempt is not None
        condemned: set[int] = set()
        finished: set[int] = set()
        if attempt.is_careful:
            while (group := self.ledger.next_group(unit_id)) is not None and group.rows:
                if self.killers & set(group.rows):
                    self.ran_to_death.append(group.rows)
                    return None
                finished |= set(group.rows)
            assert group is not None
            condemned = set(group.condemned)
        rest = set(range(num_rows)) - condemned - finished
        if self.killers & rest:
            self.ran_to_death.append(tuple(sorted(rest)))
            return None
        return finished | rest, condemned


@pytest.mark.parametrize("num_rows", [1, 2, 7, 64, 256])
def test_the_row_that_kills_is_condemned_and_no_other(num_rows: int) -> None:
    for killer in {0, num_rows // 2, num_rows - 1}:
        cluster = Cluster({killer})
        assert cluster.run(0, num_rows) == (set(range(num_rows)) - {killer}, {killer})
        assert len(cluster.ran_to_death) <= 5
        assert cluster.ran_to_death[-2:] == [(killer,), (killer,)]
        assert cluster.ledger.summary()["num_condemned_rows"] == 1


@pytest.mark.parametrize("seed", range(5))
def test_several_killers_in_one_unit_are_condemned(seed: int) -> None:
    killers = set(random.Random(seed).sample(range(100), 4))
    cluster = Cluster(killers)
    assert cluster.run(3, 100) == (set(range(100)) - killers, killers)


def test_a_unit_without_killers_that_lost_two_processes_loses_no_row() -> None:
    ledger = Ledger(lambda node: True)
    assert ledger.begin(0, 4, "a", "node") == Attempt(0, is_careful=False)
    assert ledger.begin(0, 4, "b", "node") == Attempt(1, is_careful=False)
    assert ledger.begin(0, 4, "c", "node") == Attempt(2, is_careful=True)
    groups = []
    while (group := ledger.next_group(0)) is not None and group.rows:
        groups.append(group.rows)
    assert groups == [(0, 1), (2, 3)]
    assert group is not None
    assert group.condemned == ()


def test_one_death_alone_condemns_no_row() -> None:
    ledger = Ledger(lambda node: True)
    for process in "abc":
        ledger.begin(0, 1, process, "node")
    assert ledger.next_group(0).rows == (0,)
    ledger.begin(0, 1, "d", "node")
    again = ledger.next_group(0)
    assert (again.rows, again.condemned) == ((0,), ())
    assert ledger.next_group(0).condemned == ()


def test_a_death_with_the_node_counts_against_no_row() -> None:
    alive = {"spot", "other"}
    ledger = Ledger(alive.__contains__)
    for process in ("a", "b"):
        ledger.begin(0, 9, process, "other")
    ledger.begin(0, 9, "c", "spot")
    assert ledger.next_group(0).rows == (0, 1, 2)
    alive.remove("spot")
    assert ledger.begin(0, 9, "d", "other") == Attempt(3, is_careful=True)
    assert ledger.next_group(0).rows == (0, 1, 2), "the group is tried as it was"
    assert ledger.summary()["num_deaths"] == 2


def test_a_call_that_is_repeated_in_the_same_process_is_no_death() -> None:
    ledger = Ledger(lambda node: True)
    for number in range(5):
        assert ledger.begin(0, 4, "a", "node") == Attempt(number, is_careful=False)


def test_a_unit_is_not_begun_again_after_its_commit() -> None:
    ledger = Ledger(lambda node: True)
    assert ledger.begin(0, 4, "a", "node") == Attempt(0, is_careful=False)
    ledger.finish(0)
    assert ledger.begin(0, 4, "b", "node") is None
    assert ledger.summary()["num_deaths"] == 0


def test_a_run_that_stops_begins_nothing() -> None:
    ledger = Ledger(lambda node: True)
    ledger.stop()
    assert ledger.begin(0, 4, "a", "node") is None


def test_a_unit_that_kills_too_many_processes_fails_the_run() -> None:
    ledger = Ledger(lambda node: True)
    for number in range(MAX_DEATHS):
        ledger.begin(0, 400, f"process-{number}", "node")
    with pytest.raises(UnitAbandoned, match=f"{MAX_DEATHS} processes died over unit 0"):
        ledger.begin(0, 400, "last", "node")


def test_the_attempt_that_brings_a_death_to_light_reports_it_once() -> None:
    ledger = Ledger(lambda node: True)
    attempts = [ledger.begin(0, 4, process, "node") for process in "aabb"]
    assert [attempt and attempt.num_deaths for attempt in attempts] == [0, 0, 1, 0]
    assert [attempt and attempt.follows_death for attempt in attempts] == [False, False, True, False]
    elsewhere = Ledger(lambda node: False)
    attempts = [elsewhere.begin(0, 4, process, "gone") for process in "ab"]
    assert [attempt and attempt.num_deaths for attempt in attempts] == [0, 0]


def test_a_process_that_dies_over_three_units_is_one_death_and_counts_in_each_unit() -> None:
    ledger = Ledger(lambda node: True)
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


def test_a_death_that_a_refused_backup_brings_to_light_is_reported_by_the_next_attempt() -> None:
    ledger = Ledger(lambda node: True)
    ledger.begin(0, 4, "a", "node")
    ledger.begin(0, 4, "b", "node", True)
    assert ledger.begin(0, 4, "c", "node", True) is None
    attempt = ledger.begin(1, 4, "c", "node")
    assert attempt is not None
    assert (attempt.num_deaths, attempt.follows_death) == (1, False)


def test_the_units_of_dismissed_processes_count_against_no_row() -> None:
    ledger = Ledger({"node"}.__contains__)
    for pool in range(5):
        assert ledger.begin(0, 4, f"process-{pool}", "node") == Attempt(pool, is_careful=False)
        ledger.dismiss()
        assert ledger.num_joined() == 0
    assert ledger.summary()["num_deaths"] == 0
    assert ledger.begin(0, 4, "the last one", "node") is not None
    assert ledger.begin(0, 4, "another one", "node").follows_death, "who came later did die"
