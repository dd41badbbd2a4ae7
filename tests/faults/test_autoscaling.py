"""Ray's own autoscaler under a run: nodes come when there is work and go when there is none, and no unit is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.autoscaling import autoscaling_cluster, num_workers
from tests.faults.cluster import RayCluster
from tests.faults.runs import PATIENCE_S, Corpus, Driver, FaultRun
from tests.jobs.runs import wait_until

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]
Say = Callable[[str], None]
FLAGS = ("--actors.min_actors=1", "--actors.max_actors=2", "--actors.units_in_flight=1")


def test_a_run_scales_from_no_workers_to_two_and_back_and_no_unit_is_killed_by_it(
    corpus: Corpus, text_pair: tuple[str, str], tmp_path: Path, say: Say
) -> None:
    with autoscaling_cluster(tmp_path, max_workers=2) as cluster:
        # Ray Data would keep its nodes for 180 s after it has no use for them.
        cluster.environment["RAY_DATA_LOW_UTIL_REQUEST_RELEASE_DELAY_S"] = "0"
        run = FaultRun(cluster, corpus, text_pair, tmp_path, str(tmp_path / "out"), FLAGS)
        assert num_workers(cluster) == 0
        # The last unit takes so long that the idle node goes meanwhile.
        driver = run.start(pause_s=3.0, num_units=corpus.num_units, last_s=90.0)
        try:
            _wait_for_workers(cluster, 2, driver)
            driver.refuse_ended()
            assert len(run.commits()) < corpus.num_units - 1, "the second node came too late to be of use"
            run.wait_for_commits(corpus.num_units - 1, driver)
            _wait_for_workers(cluster, 1, driver)
            driver.refuse_ended()
            driver.wait(0)
        finally:
            run.end()
        assert len({entry.node for entry in run.diary.entries() if entry.what == "committed"}) == 2
        wait_until(lambda: num_workers(cluster) == 0, PATIENCE_S, every_s=0.5)
    say(f"0, 1, 2, 1, 0 nodes; {run.prove_nothing_lost(0)}")


def _wait_for_workers(cluster: RayCluster, count: int, driver: Driver) -> None:
    wait_until(lambda: num_workers(cluster) == count or driver.has_ended, PATIENCE_S, every_s=0.5)
