"""`jobs.status`: the state of a run, as its directory tells."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from actors.run_notes import DraftWork
from jobs import status
from pipeline.run.directory import RunDirectory
from pipeline.run.progress.lease import Holder, hold_lease
from pipeline.run.progress.state import read_state
from pipeline.storage.whole_file import replace_file
from tests.pipeline.made_up import RUN, commit_rows, error, sound_rows, unit

NOW = datetime.now(UTC).isoformat(timespec="seconds")
LONG_AGO = (datetime.now(UTC) - timedelta(hours=1)).isoformat(timespec="seconds")
ELSEWHERE = Holder("token", "another-host", 5, LONG_AGO, NOW, 3, 60.0, num_engines=2)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """Return a run of four units with three rows each: two are committed, 20 s apart, and one row failed."""
    run = RunDirectory.create(str(tmp_path / "run"), RUN, [unit(number) for number in range(4)])
    commit_rows(run, unit(0), sound_rows(unit(0), [0, 1, 2]), [])
    commit_rows(run, unit(1), sound_rows(unit(1), [0, 2]), [error(unit(1), 1)])
    newest = 1_700_000_000
    for number, seconds in ((0, newest - 20), (1, newest)):
        os.utime(run.part_path(number).path, (seconds, seconds))
    return run


def test_a_run_that_no_driver_works_on_is_stopped(run, capsys):
    assert status.main([run.location.name]) == 4
    printed = capsys.readouterr().out
    assert "run: stopped" in printed
    assert "2 of 4 units, 6 of 12 rows (50.0%)" in printed
    assert "1 rows failed, in 1 units" in printed
    assert "none at work" in printed
    assert "the same dray generate goes on with it" in printed


def test_a_run_whose_driver_gives_signs_of_life_is_running(run, capsys):
    with hold_lease(run) as lease:
        lease.num_engines, lease.draft_work = 2, str(DraftWork(20.0, 40.0, 5.0, 0.1))
        lease.renew()
        assert status.main([run.location.name]) == 3
        assert "drafted 0% of the engines' time, and engines waited for them 25%; they stand idle" in (
            capsys.readouterr().out
        )
        assert status.main([run.location.name, "--json"]) == 3
    told = json.loads(capsys.readouterr().out)
    assert (told["state"], told["num_committed_rows"], told["num_error_rows"]) == ("running", 6, 1)
    assert (told["holder"]["pid"], told["holder"]["num_engines"]) == (os.getpid(), 2)
    assert told["rows_per_second"] == pytest.approx(3 / 20)  # the rows of the newer part, since the older one
    assert told["seconds_left"] == pytest.approx(6 / (3 / 20))


def test_a_running_run_names_the_places_that_get_no_units_and_why(run, capsys):
    with hold_lease(run) as lease:
        lease.failed_places = ["10.0.0.3: OSError: [Errno 30] Read-only file system"]
        lease.renew()
        assert status.main([run.location.name]) == 3
    assert "at rest:   10.0.0.3: OSError: [Errno 30] Read-only file system" in capsys.readouterr().out


def test_a_driver_on_this_machine_whose_process_is_gone_is_dead_at_once(run):
    _write(run, run_by := _dead_here())
    state = read_state(run, patience_s=600.0)
    assert (state.state, state.holder, state.seconds_left) == ("stopped", run_by, None)


def test_a_driver_elsewhere_is_alive_by_its_last_sign_of_life_or_by_the_next(run):
    _write(run, replace(ELSEWHERE, renewed=datetime.now(UTC).isoformat(timespec="seconds")))
    assert read_state(run, patience_s=0.0).state == "running"
    _write(run, replace(ELSEWHERE, renewed=LONG_AGO))
    assert read_state(run, patience_s=0.0).state == "stopped"


def test_a_complete_run_is_complete_only_once_it_was_verified(run):
    for number in (2, 3):
        commit_rows(run, unit(number), sound_rows(unit(number), [0, 1, 2]), [])
    assert status.main([run.location.name]) == 4
    run.mark_success()
    assert status.main([run.location.name]) == 0


def test_a_folder_without_a_run_has_exit_code_2(tmp_path, capsys):
    assert status.main([str(tmp_path)]) == 2
    assert "no run here" in capsys.readouterr().err


def test_a_damaged_manifest_has_exit_code_1(run, capsys):
    for part in Path(run.location.path).glob("manifest/*.parquet"):
        part.write_bytes(b"damaged")
    assert status.main([run.location.name]) == 1
    assert "manifest" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["status", "verify", "report"])
def test_what_reads_a_run_imports_neither_torch_nor_ray(run, command):
    code = (
        f"import sys; from jobs import {command}; {command}.main([sys.argv[1]]); "
        "heavy = {'torch', 'transformers', 'ray'} & sys.modules.keys(); assert not heavy, heavy"
    )
    ended = subprocess.run([sys.executable, "-c", code, run.location.name], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr


def _dead_here() -> Holder:
    """Return the holder that a process of this machine left behind, which renewed its lease just now."""
    ended = subprocess.run(
        [sys.executable, "-c", "import os, socket; print(os.getpid(), socket.gethostname())"],
        capture_output=True,
        text=True,
        check=True,
    )
    pid, host = ended.stdout.split()
    return replace(ELSEWHERE, host=host, pid=int(pid))


def _write(run: RunDirectory, holder: Holder) -> None:
    replace_file(run.location.child("_LEASE"), holder.to_bytes(), run.temporary)
