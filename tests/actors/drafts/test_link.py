"""The way to a draft actor: tried again after longer and longer waits, and not for ever."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from actors.drafts.link import DraftLink, LinkNumbers
from actors.settings import DraftSettings

DIED, UNAVAILABLE = ray.exceptions.ActorDiedError(), ray.exceptions.ActorUnavailableError("busy", None)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Roster:
    """Names actors by number, or none; remembers who was called lost."""

    def __init__(self) -> None:
        self.lost: list[str | None] = []
        self.answers: Callable[[], Any] = lambda: actor_named(f"{len(self.lost):02x}")

    def __call__(self, lost: str | None) -> Any:
        self.lost.append(lost)
        return self.answers()


def actor_named(name: str) -> Any:
    return SimpleNamespace(_actor_id=bytes.fromhex(name))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def roster() -> Roster:
    return Roster()


@pytest.fixture
def missing() -> set[Any]:
    """Answers that have not come; all others are there."""
    return set()


@pytest.fixture
def link(clock: Clock, roster: Roster, missing: set[Any], monkeypatch: pytest.MonkeyPatch) -> DraftLink:
    def wait(references: list[Any], num_returns: int = 1, timeout: float = 0) -> tuple[list[Any], list[Any]]:
        is_there = [reference not in list(missing) for reference in references]
        pairs = list(zip(references, is_there, strict=True))
        return [reference for reference, there in pairs if there], [
            reference for reference, there in pairs if not there
        ]

    def get(references: Any, timeout: float | None = None) -> Any:
        for reference in references if isinstance(references, list) else [references]:
            if isinstance(reference, Exception):
                raise reference
        return references

    monkeypatch.setattr("actors.drafts.link.ray.wait", wait)
    monkeypatch.setattr("actors.drafts.link.ray.get", get)
    return DraftLink(roster, DraftSettings(timeout_s=1.0, most_reconnects=3), clock)


def test_an_actor_that_died_is_named_to_the_roster_which_names_another_one(
    link: DraftLink, roster: Roster, clock: Clock
) -> None:
    first = link.actor()
    assert link.is_up
    link.failed(link.generation, DIED)
    assert not link.is_up
    assert link.actor() is None, "not at once"
    clock.now = 100.0
    assert link.actor() not in (None, first)
    assert roster.lost == [None, first._actor_id.hex()]


def test_an_actor_that_was_out_of_reach_for_a_moment_stays(link: DraftLink, roster: Roster, clock: Clock) -> None:
    first = link.actor()
    link.failed(link.generation, UNAVAILABLE)
    clock.now = 100.0
    assert link.actor() is first
    assert roster.lost == [None]


def test_the_wait_doubles_with_each_failure_in_a_row_up_to_a_limit(link: DraftLink, clock: Clock) -> None:
    waits = []
    link.actor()
    for _ in range(3):
        link.failed(link.generation, UNAVAILABLE)
        began = clock.now
        while link.actor() is None:
            clock.now += 0.01
        waits.append(round(clock.now - began, 1))
    assert waits == [0.2, 0.4, 0.8]
    link.answered()
    assert not link.is_gone


def test_several_lanes_that_notice_one_failure_count_it_once(link: DraftLink) -> None:
    link.actor()
    generation = link.generation
    for _ in range(3):
        link.failed(generation, DIED)
    assert link.numbers.num_losses == 1


def test_after_too_many_losses_nobody_is_asked_any_more(link: DraftLink, roster: Roster, clock: Clock) -> None:
    for _ in range(4):
        assert link.actor() is not None
        link.failed(link.generation, DIED)
        clock.now += 100.0
    num_asked = len(roster.lost)
    assert link.is_gone
    assert link.actor() is None
    assert len(roster.lost) == num_asked


def test_losses_of_long_ago_are_forgotten(link: DraftLink, clock: Clock) -> None:
    for _ in range(20):
        assert link.actor() is not None
        link.failed(link.generation, DIED)
        clock.now += 3600.0
    assert not link.is_gone


def test_a_roster_that_names_nobody_ends_it(link: DraftLink, roster: Roster) -> None:
    roster.answers = lambda: None
    assert link.actor() is None
    assert link.is_gone


def test_an_actor_that_is_late_is_out_of_reach_until_a_while_after_it_answers(
    link: DraftLink, clock: Clock, missing: set[Any]
) -> None:
    actor = link.actor()
    missing.add("draft")
    link.late("draft", link.generation)
    assert not link.is_up
    assert link.actor() is None
    clock.now += 30.0
    missing.clear()  # whoever asked for it never looks at it again
    assert not link.is_up
    assert link.actor() is None
    clock.now += 0.3
    assert link.is_up
    assert link.actor() is actor


def test_an_actor_is_late_until_it_has_given_every_answer(link: DraftLink, clock: Clock, missing: set[Any]) -> None:
    link.actor()
    missing.update(("first", "second"))
    for reference in ("first", "second", "second"):
        link.late(reference, link.generation)
    missing.remove("first")
    clock.now += 50.0
    assert not link.is_up
    clock.now += 50.0
    assert link.is_late
    assert link.generation == 0, "it said something 50 s ago"
    missing.remove("second")
    assert not link.is_late
    clock.now += 1.0
    assert link.is_up


def test_a_late_answer_that_is_a_failure_is_one(link: DraftLink, roster: Roster, clock: Clock) -> None:
    first = link.actor()
    link.late(DIED, link.generation)
    assert not link.is_late
    assert link.generation == 1
    clock.now += 1.0
    assert link.actor() is not first
    link.late("of before", 0)
    assert link.is_up


def test_an_actor_that_stays_silent_is_given_up_for_another_one(
    link: DraftLink, roster: Roster, clock: Clock, missing: set[Any]
) -> None:
    first = link.actor()
    link.answered()
    missing.add("draft")
    link.late("draft", link.generation)
    clock.now += 59.0
    assert link.actor() is None
    assert link.generation == 0
    clock.now += 2.0
    assert link.actor() is None
    assert link.generation == 1
    clock.now += 100.0
    assert link.actor() is not first
    assert roster.lost[-1] == first._actor_id.hex()


def test_an_actor_that_never_answered_may_still_be_loading(link: DraftLink, clock: Clock, missing: set[Any]) -> None:
    link.actor()
    missing.add("draft")
    link.late("draft", link.generation)
    clock.now += 299.0
    assert link.is_late
    assert link.generation == 0
    missing.clear()
    assert not link.is_late
    clock.now += 1.0
    assert link.is_up


def test_an_actor_that_dies_before_it_is_there_is_replaced_while_there_is_time(
    link: DraftLink, roster: Roster, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.drafts.link.time.sleep", lambda seconds: setattr(clock, "now", clock.now + seconds))

    def actor() -> Any:
        ready = DIED if len(roster.lost) < 3 else 7
        return SimpleNamespace(_actor_id=bytes([len(roster.lost)]), ready=SimpleNamespace(remote=lambda size: ready))

    roster.answers = actor
    assert link.connect(300, deadline=10.0)
    assert roster.lost == [None, "01", "02"]


def test_an_actor_that_dies_again_and_again_is_waited_for_until_the_deadline(
    link: DraftLink, roster: Roster, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.drafts.link.time.sleep", lambda seconds: setattr(clock, "now", clock.now + seconds))

    def late(reference: Any, timeout: float | None = None) -> Any:
        if timeout == 0:
            raise ray.exceptions.GetTimeoutError
        raise DIED

    monkeypatch.setattr("actors.drafts.link.ray.get", late)
    assert not link.connect(300, deadline=0.5)
    assert clock.now == 0.5
    assert not link.is_gone


def test_numbers_of_links_add_up() -> None:
    assert LinkNumbers(num_losses=1, wait_seconds=2.0) + LinkNumbers(num_losses=2) == LinkNumbers(3, wait_seconds=2.0)
