"""The feed hands out every unit once, at the ledger's pace, and then backups until nobody can need one."""

import pickle

import pytest
import ray

from actors.units.feed import Feed
from actors.units.ledger import start_ledger
from pipeline.streaming.stream import Ticket
from tests.pipeline.made_up import unit

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_address")]


def test_every_unit_once_then_a_backup_for_whoever_is_idle_then_the_end() -> None:
    ledger = start_ledger(units_in_flight=1, most_waiting=2)
    feed = Feed([unit(0), unit(1), unit(2)], ledger, backups=True)()
    assert [next(feed), next(feed)] == [Ticket(unit(0)), Ticket(unit(1))]
    ray.get([ledger.begin.remote(0, 3, "a", "node"), ledger.begin.remote(1, 3, "a", "node")])
    assert next(feed) == Ticket(unit(2))
    ray.get([ledger.begin.remote(2, 3, "a", "node"), ledger.join.remote("b")])
    assert next(feed) == Ticket(unit(0), is_backup=True)
    ray.get([ledger.finish.remote(unit_id) for unit_id in range(3)])
    assert list(feed) == []


def test_it_ends_with_the_run_also_where_it_would_have_to_wait() -> None:
    ledger = start_ledger(most_waiting=1)
    feed = Feed([unit(0), unit(1)], ledger, backups=True)()
    assert next(feed) == Ticket(unit(0))
    ray.get(ledger.stop.remote())
    assert list(feed) == []


def test_without_backups_it_ends_with_the_last_unit() -> None:
    feed = Feed([unit(0)], start_ledger(), backups=False)
    assert list(feed()) == [Ticket(unit(0))]


def test_it_travels() -> None:
    feed = Feed([unit(0)], start_ledger(), backups=False)

    @ray.remote(num_cpus=0)
    def elsewhere(travelled: Feed) -> list[Ticket]:
        return list(travelled())

    assert ray.get(elsewhere.remote(feed)) == [Ticket(unit(0))]
    assert pickle.loads(pickle.dumps(Ticket(unit(0)))) == Ticket(unit(0))
