"""What signals do to a run, without a run."""

import signal
import threading
from contextlib import suppress

import pytest

from jobs.stopping import GracefulStop


def test_an_interrupt_that_something_swallowed_comes_again() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), GracefulStop(lambda: None, 60.0, insist_after_s=0.01):
        _swallow_one_and_wait()
    assert signal.getsignal(signal.SIGINT) is before


def test_nobody_is_interrupted_after_the_end() -> None:
    stopped = threading.Event()
    with GracefulStop(stopped.set, 60.0, insist_after_s=0.001):
        signal.raise_signal(signal.SIGTERM)
        assert stopped.wait(30)
    threading.Event().wait(0.05)


def _swallow_one_and_wait() -> None:
    with suppress(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    threading.Event().wait(30)
