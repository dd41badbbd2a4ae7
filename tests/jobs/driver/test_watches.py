"""What the driver prints while engines start, and when actors find no room."""

import pytest
import ray

from actors.units.ledgers import start_ledger
from jobs.driver.progress import Progress
from jobs.driver.watches import watch_for_engines, watch_for_shortage, watching
from pipeline.streaming.pool import ActorPool
from tests.jobs.runs import wait_until


@pytest.mark.ray
@pytest.mark.usefixtures("ray_address")
def test_a_pool_without_room_on_the_cluster_is_reported_while_it_waits(capsys):
    printed = []

    def has_reported() -> bool:
        printed.append(capsys.readouterr().err)
        return "room for 3 of 4 actors" in "".join(printed)

    pool = ActorPool(min_actors=1, max_actors=4, initial_actors=4, num_cpus=2)
    with watching(watch_for_shortage, pool, start_ledger(), None, 0.05):
        wait_until(has_reported)
    assert "waiting for actors, 0 of 4 ready: there is room for 3 of 4 actors: each takes 2 CPU" in "".join(printed)


@pytest.mark.ray
@pytest.mark.usefixtures("ray_address")
def test_engines_are_shown_as_they_come_up(capsys):
    printed, ledger = [], start_ledger()

    def has_shown(text: str) -> bool:
        printed.append(capsys.readouterr().err)
        return text in "".join(printed)

    with watching(watch_for_engines, ledger, 2, Progress("lines", "loading"), 0.05):
        ray.get(ledger.join.remote("one"))
        wait_until(lambda: has_shown("1 of 2 engines up after"))
        ray.get(ledger.join.remote("two"))
        wait_until(lambda: has_shown("2 of 2 engines up after"))
        ray.get(ledger.note_written.remote("one", 3, 400))
        ray.get(ledger.note_written.remote("two", 1, 50))
        assert ray.get(ledger.written.remote()) == (4, 450)
