"""A link tries to reach its draft actor after longer and longer waits, and gives up in the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import ray

from actors.drafts.link import DraftLink, LinkStats
from actors.placement import DraftSettings
from pipeline.ray_internals import actor_id_of
from tests.actors.drafts.fake_calls import FakeCalls, Reference, actor_named
from tests.clock import Clock

DIED, UNAVAILABLE = ray.exceptions.ActorDiedError(), ray.exceptions.ActorUnavailableError("busy", None)


class Roster:
    """Names actors by number, and remembers which ones were reported lost."""

    def __init__(self) -> None:
        self.lost: list[str | None] = []
        self.answers: Callable[[], Any] = lambda: actor_named(f"{len(self.lost):02x}")

    def __call__(self, lost: str | None) -> Reference:
        self.lost.append(lost)
        return Reference(self.answers())


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def roster() -> Roster:
    return Roster()


@pytest.fixture
def link(clock: Clock, roster: Roster) -> DraftLink:
    settings = DraftSettings(timeout_s=1.0, most_reconnects=3)
    return DraftLink(roster, settings, calls=FakeCalls(), clock=clock, sleep=clock.sleep)


def test_a_dead_actor_is_reported_to_the_roster_and_replaced(link: DraftLink, roster: Roster, clock: Clock) -> None:
    first = link.actor()
    assert link.is_up
    link.failed(link.generation, DIED)
    assert not link.is_up
    assert link.actor() is None, "not at once"
    clock.now = 100.0
    assert link.actor() not in (None, first)
    assert roster.lost == [None, actor_id_of(first)]


def test_an_actor_that_was_out_of_reach_for_a_moment_is_kept(link: DraftLink, roster: Roster, clock: Clock) -> None:
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
    assert link.stats.num_losses == 1


def test_after_too_many_losses_the_link_asks_the_roster_no_more(link: DraftLink, roster: Roster, clock: Clock) -> None:
    for _ in range(4):
        assert link.actor() is not None
        link.failed(link.generation, DIED)
        clock.now += 100.0
    num_asked = len(roster.lost)
    assert link.is_gone
    assert link.actor() is None
    assert len(roster.lost) == num_asked


def test_a_wire_that_breaks_again_and_again_does_not_lead_to_giving_its_actor_up(link: DraftLink, clock: Clock) -> None:
    first = link.actor()
    for _ in range(20):
        link.failed(link.generation, UNAVAILABLE)
        clock.now += 100.0
    assert link.actor() is first


def test_losses_of_an_hour_ago_no_longer_count(link: DraftLink, clock: Clock) -> None:
    for _ in range(20):
        assert link.actor() is not None
        link.failed(link.generation, DIED)
        clock.now += 3600.0
    assert not link.is_gone


def test_an_actor_with_a_late_reply_is_out_of_reach_until_a_while_after_it(link: DraftLink, clock: Clock) -> None:
    actor, reply = link.actor(), Reference(is_there=False)
    link.late(reply, link.generation)
    assert not link.is_up
    assert link.actor() is None
    clock.now += 30.0
    reply.is_there = True  # the lane that asked never looks at it again
    assert not link.is_up
    assert link.actor() is None
    clock.now += 0.3
    assert link.is_up
    assert link.actor() is actor


def test_an_actor_is_late_until_every_late_reply_has_come(link: DraftLink, clock: Clock) -> None:
    link.actor()
    first, second = Reference(is_there=False), Reference(is_there=False)
    for reply in (first, second, second):
        link.late(reply, link.generation)
    first.is_there = True
    clock.now += 50.0
    assert not link.is_up
    clock.now += 50.0
    assert link.is_late
    assert link.generation == 0, "the first reply came 50 s ago"
    second.is_there = True
    assert not link.is_late
    clock.now += 1.0
    assert link.is_up


def test_a_late_reply_that_is_an_exception_counts_as_a_failure(link: DraftLink, clock: Clock) -> None:
    first = link.actor()
    link.late(Reference(DIED), link.generation)
    assert not link.is_late
    assert link.generation == 1
    clock.now += 1.0
    assert link.actor() is not first
    link.late(Reference(is_there=False), 0)
    assert link.is_up, "a late reply of an earlier generation does not matter"


def test_an_actor_that_stays_silent_is_replaced(link: DraftLink, roster: Roster, clock: Clock) -> None:
    first = link.actor()
    link.answered()
    link.late(Reference(is_there=False), link.generation)
    clock.now += 59.0
    assert link.actor() is None
    assert link.generation == 0
    clock.now += 2.0
    assert link.actor() is None
    assert link.generation == 1
    clock.now += 100.0
    assert link.actor() is not first
    assert roster.lost[-1] == actor_id_of(first)


def test_an_actor_that_has_never_replied_may_still_be_loading(link: DraftLink, clock: Clock) -> None:
    link.actor()
    reply = Reference(is_there=False)
    link.late(reply, link.generation)
    clock.now += 299.0
    assert link.is_late
    assert link.generation == 0
    reply.is_there = True
    assert not link.is_late
    clock.now += 1.0
    assert link.is_up


def test_an_actor_that_dies_while_it_loads_is_replaced_before_the_deadline(link: DraftLink, roster: Roster) -> None:
    def actor() -> Any:
        ready = Reference(DIED if len(roster.lost) < 3 else 7)
        return actor_named(f"{len(roster.lost):02x}", ready=lambda vocab_size: ready)

    roster.answers = actor
    assert link.connect(300, deadline=10.0)
    assert roster.lost == [None, "01", "02"]


def test_an_actor_that_keeps_dying_is_awaited_until_the_deadline(link: DraftLink, roster: Roster, clock: Clock) -> None:
    def ready(vocab_size: int) -> Reference:
        return Reference(DIED, is_there=clock.now < 0.5)

    roster.answers = lambda: actor_named("01", ready=ready)
    assert not link.connect(300, deadline=0.5)
    assert clock.now == 0.5
    assert not link.is_gone


def test_stats_of_links_add_up() -> None:
    assert LinkStats(num_losses=1, wait_seconds=2.0) + LinkStats(num_losses=2) == LinkStats(3, wait_seconds=2.0)
