"""A disk that is full in the midst of a run: it fails clean, and goes on when there is room."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipeline.run.check import check_run
from tests.faults.runs import NUM_ACTORS, UNITS_IN_FLIGHT, FaultRun, NewRun
from tests.small_disk import small_disk

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]
Say = Callable[[str], None]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 2 MiB; where this process may not mount one, the test is skipped, and the other one stands."""
    with small_disk(tmp_path / "disk", "2m") as path:
        yield path


def test_a_run_whose_disk_fills_up_fails_clean_and_goes_on_when_there_is_room(
    disk: Path, new_run: NewRun, say: Say
) -> None:
    run, ballast = new_run(output=str(disk / "out")), disk / "ballast"
    driver = run.start()
    run.wait_for_commits(3, driver)
    driver.refuse_ended()
    with pytest.raises(OSError, match="No space left"):
        _fill(ballast)
    _refuse_half_files_and_go_on(run, "No space left on device", ballast.unlink, say)


def test_a_run_whose_files_may_not_grow_fails_clean_and_goes_on_when_they_may(
    new_run: NewRun, tmp_path: Path, say: Say
) -> None:
    run, flag = new_run(), tmp_path / "small"
    driver = run.start("on_small_disk", flag=str(flag), num_bytes=1000)
    run.wait_for_commits(3, driver)
    driver.refuse_ended()
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


def _fill(path: Path) -> None:
    with open(path, "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
