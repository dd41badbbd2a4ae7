"""Ray's own autoscaler under a run: nodes come when there is work and go when there is none, and no unit is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.autoscaling import autoscaling_cluster, num_workers
from tests.faults.cluster import RayCluster
from tests.faults.runs import PATIENCE_S, Corpus, FaultRun
from tests.jobs.runs import wait_until

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]
Say = Callable[[str], None]


def test_a_run_scales_from_no_workers_to_two_and_back_and_no_unit_is_killed_by_it(
    corpus: Corpus, text_pair: tuple[str, str], tmp_path: Path, say: Say
) -> None:
    flags = ("--actors.min_actors=1", "--actors.max_actors=2", "--actors.units_in_flight=1")
    with autoscaling_cluster(tmp_path, max_workers=2) as cluster:
        run = FaultRun(cluster, corpus, text_pair, tmp_path, str(tmp_path / "out"), flags)
        assert num_workers(cluster) == 0
        driver = run.start(pause_s=3.0, num_units=corpus.num_units, last_s=60.0)
        _wait_for_workers(cluster, 2, lambda: driver.has_ended)
        driver.refuse_ended()
        assert len(run.commits()) > 0, "the second node came with the first, not with the work"
        run.wait_for_commits(corpus.num_units - 1, driver)
        _wait_for_workers(cluster, 1, lambda: driver.has_ended)
        driver.refuse_ended()  # one node went while the last unit ran on the other
        driver.wait(0)
        nodes = {entry.node for entry in run.diary.entries() if entry.what == "committed"}
        assert len(nodes) == 2
        _wait_for_workers(cluster, 0, lambda: False)
    say(f"0, 1, 2, 1, 0 nodes; {run.prove_nothing_lost(0)}")


def _wait_for_workers(cluster: RayCluster, count: int, has_ended: Callable[[], bool]) -> None:
    wait_until(lambda: num_workers(cluster) == count or has_ended(), PATIENCE_S, every_s=0.5)
