"""What SIGTERM does to a command: nothing new is begun, units in flight are committed, and it ends.

Where no unit is in flight, while a run is planned or verified, it ends at once, as with Ctrl-C.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """While it is entered, SIGTERM raises KeyboardInterrupt, and a second one ends the process. For the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def keeping_sigterm() -> Iterator[None]:
    """What listens to SIGTERM before the block listens after it, too; within, Ray 2.60 makes it a SystemExit."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except SystemExit as ended:
        if ended.code == signal.SIGTERM:
            raise KeyboardInterrupt from ended
        raise
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


class GracefulStop:
    """While it is entered, SIGTERM lets units in flight finish for some seconds; a second one ends the run at once.

    SIGINT (Ctrl-C) ends it at once, too: KeyboardInterrupt, and again after some seconds if that got lost on its way,
    as an exception does that is raised in a destructor or a callback of somebody else's.
    `ray job stop` and Kubernetes send SIGTERM and, after a while of their own, SIGKILL: what is committed stays, too.
    """

    def __init__(self, stop: Callable[[], None], grace_period_s: float, insist_after_s: float = 10.0) -> None:
        """`stop` lets nobody begin a unit any more. It is called in a thread: a signal may come in the midst of Ray."""
        self._stop, self._grace_period_s, self._insist_after_s = stop, grace_period_s, insist_after_s
        self._asked, self._interrupted, self._ended = threading.Event(), threading.Event(), threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="graceful-stop", daemon=True)
        self._insister = threading.Thread(target=self._insist, name="interrupt-again", daemon=True)
        self._before: dict[int, Any] = {}

    def __enter__(self) -> GracefulStop:
        """Listen from now on. Only the main thread can."""
        if threading.current_thread() is threading.main_thread():
            self._before[signal.SIGTERM] = signal.signal(signal.SIGTERM, self._on_signal)
            self._before[signal.SIGINT] = signal.signal(signal.SIGINT, self._on_interrupt)
            self._watcher.start()
            self._insister.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Listen no more."""
        self._ended.set()
        self._interrupted.set()  # its thread waits for that, and has nothing left to do
        for number, before in self._before.items():
            signal.signal(number, before)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._asked.is_set():
            raise KeyboardInterrupt
        self._asked.set()

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        self._interrupted.set()
        raise KeyboardInterrupt

    def _insist(self) -> None:
        self._interrupted.wait()
        while not self._ended.wait(self._insist_after_s):
            _interrupt_main()

    def _watch(self) -> None:
        self._asked.wait()
        print(
            f"\nstopping: what is in flight gets {self._grace_period_s:g} s to finish, nothing new is begun",
            file=sys.stderr,
            flush=True,
        )
        self._stop()
        if not self._ended.wait(self._grace_period_s):
            _interrupt_main()


def _interrupt_main() -> None:
    """As Ctrl-C does: it wakes a main thread that waits, too."""
    ident = threading.main_thread().ident
    assert ident is not None
    signal.pthread_kill(ident, signal.SIGINT)
