"""Messages of the commands about a second driver, a lost lease and damaged files, which need no Ray."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jobs import verify
from jobs.driver.stopping import Exit
from jobs.work import generation
from pipeline.counts import Counts
from pipeline.run.directory import RunDirectory
from pipeline.run.progress.lease import hold_lease
from pipeline.run.progress.missing import MissingUnits
from tests.jobs.conftest import Job
from tests.pipeline.made_up import committed_run

ROOT = Path(__file__).parents[3]


@pytest.fixture
def begun(job: Job) -> Job:
    """Return a small run whose directory exists."""
    job.read(9)
    job.begin("--models.device=cpu")
    return job


def test_a_second_driver_ends_with_a_code_of_its_own_and_one_line_that_names_the_first(begun):
    with hold_lease(RunDirectory.open(str(begun.output))) as lease:
        assert begun.generate("--models.device=cpu") == Exit.HELD
        assert f"error: another driver works on this run (host {lease.holder.host}, pid" in begun.printed()
        assert begun.generate("--models.device=cpu", "--dry-run") == Exit.COMPLETE
        assert verify.main([str(begun.output)]) == 1
        lease.refuse_if_lost()


def test_a_watchdog_counts_an_output_that_is_held_as_done_and_a_wrong_configuration_as_wrong(begun):
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def watchdog(*flags: str) -> int:
        words = ["bash", "k8s/watchdog.sh", *begun.command("--models.device=cpu", *flags)]
        return subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, timeout=120).returncode

    with hold_lease(RunDirectory.open(str(begun.output))):
        assert watchdog() == 0
        assert watchdog("--engine.num_slots=0") == Exit.BAD_CONFIGURATION


def test_a_driver_that_lost_its_lease_stops_at_the_next_unit(begun, monkeypatch):
    taken = []

    def lose_the_lease_after_a_unit(*_: Any, lease: Any) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(counts=Counts(num_rows=8))
        taken.append(1)
        lease.lost_to = "host other, pid 5"
        yield SimpleNamespace(counts=Counts(num_rows=1))
        pytest.fail("went on without its lease")

    monkeypatch.setattr(generation, "execute", lose_the_lease_after_a_unit)
    assert begun.generate("--models.device=cpu") == Exit.FAILED
    assert "went to host other, pid 5. It stops here; what is committed stays" in begun.printed()
    assert taken == [1]


def test_verify_names_damaged_files_and_repair_moves_them(tmp_path, capsys):
    run_directory = committed_run(tmp_path / "run")
    part = Path(run_directory.part_path(0).path)
    part.write_bytes(part.read_bytes()[:-7])
    path = str(tmp_path / "run")
    assert verify.main([path]) == 1
    assert "1 files are damaged or foreign; --repair moves them to quarantine/" in capsys.readouterr().out
    assert part.exists()
    with hold_lease(run_directory):
        assert verify.main([path, "--repair"]) == 1
    assert "error: another driver works on this run" in capsys.readouterr().err
    assert part.exists()
    assert verify.main([path, "--repair"]) == 1
    printed, moved = capsys.readouterr().out, "quarantine/data/part-000000000.parquet"
    assert f"moved to {moved} (why: {moved}.json)" in printed
    assert "unit 0 (rows 1 on of prompts.jsonl) is missing; run again" in printed
    assert [unit.unit_id for unit in run_directory.missing_units()] == [0]


def test_an_empty_part_is_moved_away_and_its_unit_is_done_again(begun, monkeypatch):
    missing = []

    def note_what_is_missing(units: MissingUnits, *_: Any, **__: Any) -> Iterator[SimpleNamespace]:
        missing.extend(unit.unit_id for unit in units)
        yield from (SimpleNamespace(counts=Counts()) for _ in missing)

    (begun.output / "data/part-000000001.parquet").write_bytes(b"")
    monkeypatch.setattr(generation, "execute", note_what_is_missing)
    assert begun.generate("--models.device=cpu") == Exit.FAILED
    assert missing == [0, 1]
    assert "quarantine/data/part-000000001.parquet: was too short to be a part" in begun.printed()
