"""One driver at a time: a second one is refused while the first lives, and only then."""

import multiprocessing
import os
import signal
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.run.directory import RunDirectory
from pipeline.run.progress.lease import Holder, LeaseHeld, LeaseLost, hold_lease
from pipeline.storage.whole_file import replace_file
from tests.jobs.runs import wait_until
from tests.pipeline.flaky_proxy import Failure
from tests.pipeline.made_up import RUN, unit

LONG = 600.0  # a timeout that no test waits for


@pytest.fixture
def run_directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(str(tmp_path / "run"), RUN, [unit()])


@pytest.fixture
def run_in_s3(s3_folder: str) -> RunDirectory:
    return RunDirectory.create(s3_folder, RUN, [unit()])


def _hold_until_it_is_lost(path: str, timeout_s: float, held: Any) -> None:
    """Hold the lease and exit with code 7 when another driver takes it."""
    try:
        with hold_lease(RunDirectory.open(path), timeout_s) as lease:
            held.set()
            while True:
                time.sleep(0.02)
                lease.refuse_if_lost()
    except LeaseLost:
        raise SystemExit(7) from None


def _other_driver(path: str, timeout_s: float) -> Any:
    """Start a process that holds the lease."""
    context = multiprocessing.get_context("spawn")
    held = context.Event()
    process = context.Process(target=_hold_until_it_is_lost, args=(path, timeout_s, held))
    process.start()
    assert held.wait(60)
    return process


def _write_holder(run_directory: RunDirectory, holder: Holder) -> None:
    replace_file(run_directory.location.child("_LEASE"), holder.to_bytes(), run_directory.temporary)


def test_a_second_driver_is_refused_by_name_and_a_killed_one_is_noticed_at_once(run_directory):
    process = _other_driver(run_directory.location.path, LONG)
    try:
        who = f"another driver works on this run \\(host {socket.gethostname()}, pid {process.pid}, since 20"
        with pytest.raises(LeaseHeld, match=who), hold_lease(run_directory):
            pass
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    started = time.monotonic()
    with hold_lease(run_directory) as lease:
        assert lease.holder.pid == os.getpid()
    assert time.monotonic() - started < LONG / 20


def test_a_killed_driver_of_a_run_in_s3_is_noticed_after_its_timeout(run_in_s3):
    process = _other_driver(run_in_s3.location.name, 0.2)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert run_in_s3.location.child("_LEASE").exists()
    with hold_lease(run_in_s3, LONG / 1000) as lease:
        assert lease.holder.pid == os.getpid()


def test_a_living_driver_of_a_run_in_s3_is_noticed_by_its_renewals(run_in_s3):
    started = time.monotonic()
    with hold_lease(run_in_s3, 8.0, renew_every_s=0.02) as lease:
        who = f"pid {os.getpid()}, since .*A driver that died is noticed after 8 s"
        with pytest.raises(LeaseHeld, match=who), hold_lease(run_in_s3, 8.0):
            pass
        lease.refuse_if_lost()
    assert time.monotonic() - started < 8


def _fail_while_holding(run_directory: RunDirectory) -> None:
    with hold_lease(run_directory, 0.2):
        assert run_directory.location.child("_LEASE").exists()
        raise KeyError("mine")


@pytest.mark.parametrize("where", ["run_directory", "run_in_s3"])
def test_a_lease_is_given_back_at_the_end_even_if_the_run_fails(where, request):
    run_directory = request.getfixturevalue(where)
    for _ in range(2):
        with pytest.raises(KeyError, match="mine"):
            _fail_while_holding(run_directory)
        assert not run_directory.location.child("_LEASE").exists()


@pytest.mark.parametrize("hours", [-9, 9])
def test_a_holder_with_a_wrong_clock_is_judged_by_changes_of_its_file(run_directory, hours):
    clock = f"2026-01-01T{12 + hours:02}:00:00+00:00"
    silent = Holder("abc", "elsewhere", 7, clock, clock, 0, 0.15)
    _write_holder(run_directory, silent)
    started = time.monotonic()
    with hold_lease(run_directory):
        assert time.monotonic() - started >= 0.15
    living = replace(silent, timeout_s=30.0)
    _write_holder(run_directory, living)
    timer = threading.Timer(0.05, _write_holder, (run_directory, replace(living, num_renewals=1)))
    timer.start()
    with pytest.raises(LeaseHeld, match="host elsewhere, pid 7"), hold_lease(run_directory):
        pass
    timer.join()


def test_a_driver_that_was_silent_for_too_long_notices_that_it_lost_the_run(run_in_s3, caplog):
    with hold_lease(run_in_s3, 0.1, renew_every_s=LONG) as first:
        first.refuse_if_lost()
        with hold_lease(run_in_s3, LONG) as second:
            first.renew()
            with pytest.raises(LeaseLost, match=r"no sign of life for over 0.1 s .* went to host .*what is committed"):
                first.refuse_if_lost()
            second.renew()
            second.refuse_if_lost()
            found = Holder.from_bytes(run_in_s3.location.child("_LEASE").read_bytes())
            assert found is not None
            assert found.token == second.holder.token
    assert caplog.text.count("lease lost lease=") == 1


def test_a_suspended_driver_stops_when_it_wakes_and_finds_another_driver(run_in_s3):
    process = _other_driver(run_in_s3.location.name, 0.2)
    os.kill(process.pid, signal.SIGSTOP)
    try:
        with hold_lease(run_in_s3, LONG) as lease:
            os.kill(process.pid, signal.SIGCONT)
            process.join(60)
            assert process.exitcode == 7
            lease.renew()
            lease.refuse_if_lost()
    finally:
        process.kill()


def test_a_driver_whose_lease_file_was_deleted_stops(run_directory):
    with hold_lease(run_directory, 0.1) as lease:
        run_directory.location.child("_LEASE").remove()
        wait_until(lambda: lease.lost_to is not None, 20)  # until the thread looks
        with pytest.raises(LeaseLost, match="_LEASE of this driver is gone: the file was deleted, or ") as lost:
            lease.refuse_if_lost()
        assert "sign of life" not in str(lost.value)


def test_a_store_that_is_down_for_a_while_costs_no_lease(run_in_s3, s3_server, proxy, caplog):
    behind = RunDirectory.open(run_in_s3.location.name.replace(s3_server, proxy.address))
    with hold_lease(behind, LONG, renew_every_s=0.02) as lease:
        proxy.failures.append(Failure("_LEASE", 403, 6))  # the client does not repeat these
        wait_until(lambda: not proxy.failures[0].times, 30)
        lease.renew()
        lease.refuse_if_lost()
    assert "lease not renewed lease=" in caplog.text


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\x00", b'{"token": 1}'])
def test_an_empty_or_damaged_lease_file_expires_like_any_other(run_directory, content):
    replace_file(run_directory.location.child("_LEASE"), content, run_directory.temporary)
    with hold_lease(run_directory, 0.1) as lease:
        lease.renew()
        lease.refuse_if_lost()


def test_the_log_names_the_dead_holder_of_a_lease_and_says_that_it_was_given_back(run_directory, caplog):
    caplog.set_level("INFO", "pipeline")
    then = "2026-01-01T12:00:00+00:00"
    _write_holder(run_directory, Holder("abc", "elsewhere", 7, then, then, 0, 0.05))
    with hold_lease(run_directory, LONG):
        pass
    assert [message.partition(" lease=")[0] for message in caplog.messages] == [
        "lease of a dead driver",
        "lease taken",
        "lease given back",
    ]
    assert 'holder="host elsewhere, pid 7, since ' in caplog.messages[0]


def test_of_two_drivers_that_start_at_once_on_a_store_one_goes_on(run_in_s3):
    together, outcomes = threading.Barrier(2), []

    def drive() -> None:
        together.wait(30)
        try:
            with hold_lease(run_in_s3, 4.0, renew_every_s=LONG) as lease:
                together.wait(30)
                lease.renew()
                lease.refuse_if_lost()
                together.wait(30)
                outcomes.append("goes on")
        except (LeaseHeld, LeaseLost) as refusal:
            outcomes.append(type(refusal).__name__)
            together.abort()
        except threading.BrokenBarrierError:
            outcomes.append("goes on")

    for _ in range(3):
        together.reset()
        outcomes.clear()
        threads = [threading.Thread(target=drive) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(outcomes) == 2
        assert outcomes.count("goes on") == 1, outcomes
