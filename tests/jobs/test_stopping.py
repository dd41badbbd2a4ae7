"""Signals to a command that has no unit in flight."""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from jobs import generate, retry
from jobs.driver.stopping import GracefulStop
from tests.jobs.runs import arguments, prompts, write_jsonl


def test_a_swallowed_interrupt_is_raised_again() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), GracefulStop(lambda: None, 60.0, insist_after_s=0.01):
        _swallow_one_and_wait()
    assert signal.getsignal(signal.SIGINT) is before


def test_nothing_is_interrupted_after_the_end() -> None:
    stopped = threading.Event()
    with GracefulStop(stopped.set, 60.0, insist_after_s=0.001):
        signal.raise_signal(signal.SIGTERM)
        assert stopped.wait(30)
    threading.Event().wait(0.05)


def _swallow_one_and_wait() -> None:
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


@pytest.mark.parametrize("command", [generate, retry])
def test_sigterm_while_a_run_is_planned_is_exit_code_3(
    tmp_path: Path,
    text_pair: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    received: list[int],
    command: Any,
) -> None:
    make_plan = command.make_plan

    def plan_and_stop(*given: Any) -> Any:
        signal.raise_signal(signal.SIGTERM)
        return make_plan(*given)

    monkeypatch.setattr(command, "make_plan", plan_and_stop)
    listener = signal.getsignal(signal.SIGTERM)
    source = write_jsonl(tmp_path / "in.jsonl", prompts(2))
    assert command.main(arguments(source, tmp_path / "out", text_pair)) == 3
    assert "interrupted; the same command goes on" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert received == []
    assert signal.getsignal(signal.SIGTERM) is listener


_STOPPED_AFTER_RAY = """
import signal, sys
from jobs import generate

start_ray = generate.start_ray
def start_and_stop(config):
    start_ray(config)
    signal.raise_signal(signal.SIGTERM)
generate.start_ray = start_and_stop
sys.exit(generate.main(sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.ray
def test_sigterm_between_the_start_of_ray_and_the_first_unit_is_exit_code_3(
    tmp_path: Path, text_pair: tuple[str, str], ray_address: str
) -> None:
    given = arguments(write_jsonl(tmp_path / "in.jsonl", prompts(2)), tmp_path / "out", text_pair)
    program = [sys.executable, "-c", _STOPPED_AFTER_RAY, *given, f"--run.ray_address={ray_address}"]
    done = subprocess.run(program, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 3, done.stderr
    assert "interrupted; the same command goes on" in done.stderr
    assert not list((tmp_path / "out/data").iterdir())
