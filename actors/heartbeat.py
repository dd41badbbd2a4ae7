"""Heartbeat: a thread that does the same again and again."""

from __future__ import annotations

import threading
from collections.abc import Callable

EVERY_S = 5.0  # Ray drops a gauge that was not set for 20 s, so this is well below that


class Heartbeat:
    """A thread that calls `beat` at once, then every `every_s` seconds, and once more at the end."""

    def __init__(self, beat: Callable[[], None], every_s: float = EVERY_S) -> None:
        """Prepare the thread."""
        self.beat, self._every_s = beat, every_s
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Begin. A heartbeat that lasts as long as its process is never ended."""
        self._thread.start()

    def end(self) -> None:
        """End a heartbeat that was started, after a last beat."""
        self._end.set()
        self._thread.join()

    def __enter__(self) -> Heartbeat:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def _run(self) -> None:
        self.beat()
        while not self._end.wait(self._every_s):
            self.beat()
        self.beat()
