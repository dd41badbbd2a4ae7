"""Storage in the midst of a run: a disk that is full, and an S3 server that fails while processes are killed."""

import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.run.check import check_run
from pipeline.storage.location import Location
from pipeline.storage.whole_file import replace_file
from tests.faults.runs import NUM_ACTORS, UNITS_IN_FLIGHT, FaultRun, Say
from tests.faults.strikes import kill_random_workers
from tests.pipeline.flaky_proxy import Failure, FlakyProxy, flaky_proxy
from tests.pipeline.stores import CREDENTIALS, running_s3_server, s3_uri
from tests.small_disk import fill, small_disk

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]
LEASE_TIMEOUT_S = 5
_SOON = "--run.places_timeout_s=2"
# What comes over the wire in a run, and fails: so often that pyarrow's own client gives up (31 requests), so that its
# answer is lost after the deed, or at once and for good to the client (429).
FAILURES = [
    Failure("PUT .*/data/part", 503, 31),
    Failure("PUT .*/data/part", "reset", 2, after_forwarding=True),
    Failure("PUT .*/errors/part", 429, 2),
    Failure("HEAD .*/data/part", 429, 3),
    Failure("GET .*/in.jsonl", "reset", 3),
    Failure("GET .*list-type=2", 429, 1),
]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 2 MiB; where this process may not mount one, the test is skipped, and the other one stands."""
    with small_disk(tmp_path / "disk", "2m") as path:
        yield path


def test_a_run_whose_disk_fills_up_fails_clean_and_goes_on_when_there_is_room(disk, new_run, say):
    run, ballast = new_run(_SOON, output=str(disk / "out")), disk / "ballast"
    driver = run.start()
    run.wait_for_commits(3, driver)
    fill(ballast)
    _refuse_half_files_and_go_on(run, "No space left on device", ballast.unlink, say)


def test_a_run_whose_files_may_not_grow_fails_clean_and_goes_on_when_they_may(new_run, tmp_path, say):
    run, flag = new_run(_SOON), tmp_path / "small"
    driver = run.start("on_small_disk", flag=str(flag), num_bytes=1000)
    run.wait_for_commits(3, driver)
    flag.touch()
    _refuse_half_files_and_go_on(run, "File too large", flag.unlink, say)


def _refuse_half_files_and_go_on(run: FaultRun, message: str, make_room: Callable[[], None], say: Say) -> None:
    run.drivers[-1].wait(1)
    assert message in run.drivers[-1].said()
    assert "what is committed stays; mend the cause and run the same command again" in run.drivers[-1].said()
    before = run.commits()
    assert 3 <= len(before) < run.corpus.num_units
    report = check_run(run.directory)
    assert all("is missing; run again" in problem for problem in report.problems), report.problems
    assert report.damaged == {}
    assert report.notes == [], "half a file stayed"
    make_room()
    run.start("paced").wait(0)
    assert before.items() <= run.commits().items()
    # Until the driver has heard of the first failure, each actor also tries what was queued for it.
    say(run.prove_nothing_lost(2 * UNITS_IN_FLIGHT * NUM_ACTORS))


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[FlakyProxy]:
    """A proxy in front of an S3 server; nothing fails yet."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with running_s3_server() as server, flaky_proxy(server) as running:
        yield running


def test_a_run_in_a_store_that_fails_whose_worker_and_driver_are_killed_loses_nothing(proxy, corpus, new_run, say):
    bucket = f"bucket-{uuid.uuid4().hex}"
    folder = Location.parse(s3_uri(proxy.address, f"{bucket}/input"))
    folder.make_folder()
    source = folder.child("in.jsonl")
    replace_file(source, Path(corpus.source).read_bytes(), folder)
    run = new_run(
        f"--run.lease_timeout_s={LEASE_TIMEOUT_S}",
        output=s3_uri(proxy.address, f"{bucket}/out"),
        over=replace(corpus, source=source.name),
    )
    driver = run.start()
    run.wait_for_commits(2, driver)
    proxy.failures.extend(FAILURES)
    kill_random_workers(run, driver, seed=0, num_kills=1)
    run.wait_for_commits(10, driver)
    driver.kill()
    run.start().wait(0)
    unused = [failure for failure in FAILURES if failure.times]
    proxy.failures.clear()
    proxy.requests.clear()
    say(f"a flaky store, a worker, a driver; {run.prove_nothing_lost(UNITS_IN_FLIGHT * (1 + NUM_ACTORS))}")
    written = [request for request in proxy.requests if request.startswith("PUT") and "/data/" in request]
    assert written == [], "a third run wrote parts"
    assert unused == [], "the store did not fail as it should"
