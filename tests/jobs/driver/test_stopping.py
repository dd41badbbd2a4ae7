"""Signals to a command: while units are in flight, and while none is."""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from jobs.config.run import RunConfig
from jobs.driver import outcome
from jobs.driver.plan import Plan, make_plan
from jobs.driver.stopping import graceful_stop
from tests.jobs.conftest import Job

SIGNALS = [signal.SIGINT, signal.SIGTERM]


@pytest.mark.parametrize("first", SIGNALS)
def test_the_first_signal_stops_what_is_new_and_the_line_says_what_the_second_does(capsys, first):
    stopped = threading.Event()
    with graceful_stop(stopped.set, 60.0):
        signal.raise_signal(first)
        assert stopped.wait(30)
    said = capsys.readouterr().err
    assert "stopping: what is in flight gets 60 s to finish, nothing new is begun" in said
    assert "; a second Ctrl-C or SIGTERM ends the run at once\n" in said


@pytest.mark.parametrize("second", SIGNALS)
@pytest.mark.parametrize("first", SIGNALS)
def test_the_second_signal_ends_the_run_at_once(first, second):
    with graceful_stop(lambda: None, 60.0):
        signal.raise_signal(first)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(second)


def test_units_that_are_not_done_after_the_grace_period_are_dropped():
    with pytest.raises(KeyboardInterrupt), graceful_stop(lambda: None, 0.01):
        _ask_and_wait()


def test_a_swallowed_interrupt_is_raised_again():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), graceful_stop(lambda: None, 60.0, insist_after_s=0.01):
        _swallow_one_and_wait()
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("first", SIGNALS)
def test_nothing_is_interrupted_after_the_end(first):
    stopped = threading.Event()
    with graceful_stop(stopped.set, 60.0, insist_after_s=0.001):
        signal.raise_signal(first)
        assert stopped.wait(30)
    threading.Event().wait(0.05)


def _ask_and_wait() -> None:
    signal.raise_signal(signal.SIGINT)
    threading.Event().wait(30)


def _swallow_one_and_wait() -> None:
    signal.raise_signal(signal.SIGINT)
    with suppress(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    threading.Event().wait(30)


@pytest.fixture
def received() -> Iterator[list[int]]:
    """Collect the SIGTERMs that no other handler took, which would end pytest otherwise."""
    taken: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: taken.append(number))
    yield taken
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("command", [Job.generate, Job.retry])
def test_sigterm_while_a_run_is_planned_is_exit_code_3(job, monkeypatch, received, command):
    def plan_and_stop(config: RunConfig) -> Plan:
        signal.raise_signal(signal.SIGTERM)
        return make_plan(config)

    monkeypatch.setattr(outcome, "make_plan", plan_and_stop)
    listener = signal.getsignal(signal.SIGTERM)
    job.read(2)
    assert command(job) == 3
    assert "interrupted; what is committed stays; run the same command again" in job.printed()
    assert not job.output.exists()
    assert received == []
    assert signal.getsignal(signal.SIGTERM) is listener


_STOPPED_AFTER_RAY = """
import signal, sys
from jobs import generate
from jobs.driver import execution

start_ray = execution.start_ray
def start_and_stop(config):
    start_ray(config)
    signal.raise_signal(signal.SIGTERM)
execution.start_ray = start_and_stop
sys.exit(generate.main(sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.ray
def test_sigterm_between_the_start_of_ray_and_the_first_unit_is_exit_code_3(job, ray_address):
    job.read(2)
    program = [sys.executable, "-c", _STOPPED_AFTER_RAY, *job.command(), f"--run.ray_address={ray_address}"]
    done = subprocess.run(program, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 3, done.stderr
    assert "interrupted; what is committed stays; run the same command again" in done.stderr
    assert not list((job.output / "data").iterdir())
