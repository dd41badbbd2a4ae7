"""The feed hands out every unit once, at the ledger's pace, and then backups until no unit needs one."""

import pickle

import pytest
import ray

from actors.units.feed import UnitFeed
from actors.units.ledgers import start_ledger
from pipeline.streaming.calls import UnitCall
from tests.pipeline.made_up import unit

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_address")]


def test_the_feed_yields_every_unit_once_then_a_backup_for_an_idle_process():
    ledger = start_ledger(units_in_flight=1, max_waiting=2)
    feed = UnitFeed([unit(0), unit(1), unit(2)], ledger, backups=True)()
    assert [next(feed), next(feed)] == [UnitCall(unit(0)), UnitCall(unit(1))]
    ray.get([ledger.begin.remote(0, 3, "a", "node"), ledger.begin.remote(1, 3, "a", "node")])
    assert next(feed) == UnitCall(unit(2))
    ray.get([ledger.begin.remote(2, 3, "a", "node"), ledger.join.remote("b")])
    assert next(feed) == UnitCall(unit(0), is_backup=True)
    ray.get([ledger.finish.remote(unit_id) for unit_id in range(3)])
    assert list(feed) == []


def test_the_feed_ends_with_the_run_even_where_it_would_have_to_wait():
    ledger = start_ledger(max_waiting=1)
    feed = UnitFeed([unit(0), unit(1)], ledger, backups=True)()
    assert next(feed) == UnitCall(unit(0))
    ray.get(ledger.stop.remote())
    assert list(feed) == []


def test_without_backups_the_feed_ends_with_the_last_unit():
    feed = UnitFeed([unit(0)], start_ledger(), backups=False)
    assert list(feed()) == [UnitCall(unit(0))]


def test_a_feed_runs_in_another_process():
    feed = UnitFeed([unit(0)], start_ledger(), backups=False)

    @ray.remote(num_cpus=0)
    def elsewhere(travelled: UnitFeed) -> list[UnitCall]:
        return list(travelled())

    assert ray.get(elsewhere.remote(feed)) == [UnitCall(unit(0))]
    assert pickle.loads(pickle.dumps(UnitCall(unit(0)))) == UnitCall(unit(0))
