"""Watchdog: ends a process whose engine hangs. Ray then starts another one, and the ledger counts a death."""

import faulthandler
import logging
import os
import threading
import time
from typing import NoReturn

from pipeline.logs import Event

EXIT_CODE = 70  # of a process that ends itself
_log = logging.getLogger(__name__)


class Watchdog:
    """A context around each piece of work: if one takes longer than `timeout_s`, the process ends.

    A GPU that hangs holds its thread for ever, in native code that no exception reaches.
    """

    def __init__(self, timeout_s: float) -> None:
        """Begin to watch, in a thread of its own."""
        self._timeout_s = timeout_s
        self._started: float | None = None
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def __enter__(self) -> None:
        self._started = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._started = None

    def _watch(self) -> None:
        while True:
            time.sleep(self._timeout_s / 8)
            started = self._started
            if started is not None and time.monotonic() - started > self._timeout_s:
                end_process(Event("engine hung", timeout_s=self._timeout_s))


def end_process(why: Event) -> NoReturn:
    """Log why, write all threads' stacks to stderr, and end this process."""
    _log.error(why)
    faulthandler.dump_traceback(all_threads=True)
    os._exit(EXIT_CODE)
