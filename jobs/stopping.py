"""What SIGTERM does to a run: nothing new is begun, units in flight are committed, and the command ends."""

from __future__ import annotations

import _thread
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType


class GracefulStop:
    """While it is entered, SIGTERM lets units in flight finish for some seconds; a second one ends the run at once.

    `ray job stop` and Kubernetes send SIGTERM and, after a while of their own, SIGKILL: what is committed stays, too.
    """

    def __init__(self, stop: Callable[[], None], grace_period_s: float) -> None:
        """`stop` lets nobody begin a unit any more. It is called in a thread: a signal may come in the midst of Ray."""
        self._stop, self._grace_period_s = stop, grace_period_s
        self._asked, self._ended = threading.Event(), threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="graceful-stop", daemon=True)
        self._before: Callable[[int, FrameType | None], object] | int | None = None

    def __enter__(self) -> GracefulStop:
        """Listen from now on. Only the main thread can."""
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._on_signal)
            self._watcher.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Listen no more."""
        self._ended.set()
        if self._watcher.is_alive():
            signal.signal(signal.SIGTERM, self._before)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._asked.is_set():
            raise KeyboardInterrupt
        self._asked.set()

    def _watch(self) -> None:
        self._asked.wait()
        print(
            f"\nstopping: what is in flight gets {self._grace_period_s:g} s to finish, nothing new is begun",
            file=sys.stderr,
            flush=True,
        )
        self._stop()
        if not self._ended.wait(self._grace_period_s):
            _thread.interrupt_main()
