"""Stopping by SIGTERM: a command begins no new unit, commits the units in flight, and ends.

While no unit is in flight, because the run is being planned or verified, it ends at once, as with Ctrl-C.
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
    """Let SIGTERM raise KeyboardInterrupt in the main thread while the block runs; a second one ends the process."""
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
    """Restore the handler of SIGTERM after the block, in which Ray 2.60 installs one that raises SystemExit."""
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
    """A context in which SIGTERM gives units in flight some seconds to finish; a second SIGTERM ends the run at once.

    SIGINT (Ctrl-C) ends the run at once, too, by KeyboardInterrupt. It is raised again after some seconds if it was
    lost, as happens to exceptions in destructors and in callbacks of other libraries.
    `ray job stop` and Kubernetes send SIGTERM and, some time later, SIGKILL; what is committed stays then, too.
    """

    def __init__(self, stop: Callable[[], None], grace_period_s: float, insist_after_s: float = 10.0) -> None:
        """Prepare to call `stop`, after which no unit begins, in a thread: a signal may arrive in the middle of Ray."""
        self._stop, self._grace_period_s, self._insist_after_s = stop, grace_period_s, insist_after_s
        self._asked, self._interrupted, self._ended = threading.Event(), threading.Event(), threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="graceful-stop", daemon=True)
        self._insister = threading.Thread(target=self._insist, name="interrupt-again", daemon=True)
        self._before: dict[int, Any] = {}

    def __enter__(self) -> GracefulStop:
        """Install the signal handlers, which only the main thread can do."""
        if threading.current_thread() is threading.main_thread():
            self._before[signal.SIGTERM] = signal.signal(signal.SIGTERM, self._on_signal)
            self._before[signal.SIGINT] = signal.signal(signal.SIGINT, self._on_interrupt)
            self._watcher.start()
            self._insister.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Restore the signal handlers."""
        self._ended.set()
        self._interrupted.set()  # its thread waits for that, and then ends
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
    """Interrupt the main thread as Ctrl-C does, which also wakes it if it waits."""
    ident = threading.main_thread().ident
    assert ident is not None
    signal.pthread_kill(ident, signal.SIGINT)
