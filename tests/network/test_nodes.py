"""Nodes of a run over a wire that go with notice or with a job's driver, and one whose clock is wrong."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from signal import SIGKILL
from time import sleep

import pytest
from ray.job_submission import JobStatus, JobSubmissionClient

from pipeline.inputs.records import parquet_schema
from pipeline.run.commit import work_of
from tests.faults.cluster import ROOT
from tests.faults.runs import NUM_ACTORS, PATIENCE_S, UNITS_IN_FLIGHT
from tests.faults.strikes import wait_for_work
from tests.jobs.runs import wait_until
from tests.network.cluster import NetworkCluster
from tests.network.hosts import Host

pytestmark = [pytest.mark.network, pytest.mark.slow, pytest.mark.timeout(900)]
NOTICE_S = 30
AN_HOUR_S = 3600
FAKETIME = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))  # Debian's package libfaketime


def test_a_host_that_is_drained_has_no_unit_in_flight_when_it_goes(cluster, new_run, say):
    run = new_run()
    driver = run.start(pause_s=5.0)  # the run lasts longer than the notice
    run.wait_for_commits(1, driver)
    node, at_work = wait_for_work(run, driver)
    host = cluster.host_of(at_work.pop())
    cluster.drain(node, NOTICE_S)
    sleep(NOTICE_S)
    driver.refuse_ended()
    left = run.diary.in_flight().keys() & host.processes()
    cluster.vanish(host)
    driver.wait(0)
    say(run.prove_nothing_lost(UNITS_IN_FLIGHT * NUM_ACTORS))
    assert not left, "units were in flight on the host when its notice was over"


def test_a_job_whose_drivers_host_dies_fails_and_goes_on_when_it_is_submitted_again(cluster, new_run, say):
    run, client = new_run(), JobSubmissionClient(f"http://{cluster.dashboard}")
    job = {
        "entrypoint": shlex.join(run.command(pause_s=1.0)),
        "entrypoint_resources": {"desk": 1},
        "runtime_env": {"env_vars": {"PYTHONPATH": str(ROOT)}},
    }

    def is_over(job_id: str) -> bool:
        return client.get_job_status(job_id).is_terminal()

    first = client.submit_job(**job)
    wait_until(lambda: len(run.commits()) >= 3 or is_over(first), PATIENCE_S, 0.1)
    assert not is_over(first), client.get_job_logs(first)
    cluster.vanish(cluster.desk)
    wait_until(lambda: is_over(first), PATIENCE_S, 0.5)
    assert client.get_job_status(first) == JobStatus.FAILED
    cluster.mend()
    again = client.submit_job(**job)
    wait_until(lambda: is_over(again), 2 * PATIENCE_S, 0.5)
    assert client.get_job_status(again) == JobStatus.SUCCEEDED, client.get_job_logs(again)
    say(run.prove_nothing_lost(UNITS_IN_FLIGHT * NUM_ACTORS))


@pytest.fixture
def late_host(cluster: NetworkCluster) -> Iterator[Host]:
    """A host whose clock is an hour ahead."""
    if not FAKETIME:
        pytest.skip("there is no libfaketime (Debian's package of this name)")
    host = cluster.workers[0]
    clock = {"LD_PRELOAD": str(FAKETIME[0]), "FAKETIME": f"+{AN_HOUR_S}s", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    cluster.restart(host, **clock)
    yield host
    host.signal(SIGKILL)


def test_a_host_whose_clock_is_an_hour_ahead_changes_nothing(late_host, new_run, say):
    run = new_run("--actors.min_actors=4", "--actors.max_actors=4")  # on all CPUs
    run.start(pause_s=1.0).wait(0)
    works = [work_of(parquet_schema(run.directory.part_path(unit.unit_id))) for unit in run.directory.units()]
    times = [work.ended_at for work in works]
    assert max(times) - min(times) > AN_HOUR_S / 2, "the host did no work, or its clock was right"
    say(run.prove_nothing_lost(0))
