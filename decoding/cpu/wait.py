"""Waiting for the next question of another thread, which need not wake this one.

To wake a sleeping thread takes the waker 40 us on our machine, and its next steps are slower: together up to a tenth of
a round of a small model. A thread whose questions come at a steady pace knows when the next one comes. So it sleeps by
the clock, and then looks. While it looks, any other thread that wants its processor gets it.
"""

import ctypes
import os
import time
from pathlib import Path

import torch

from decoding.cpu.library import function

_MOST_SECONDS = 0.004  # between questions: where more pass, to be woken costs little
_SLEEP = 0.5  # of the time between two questions
_LOOK = 0.8  # of it, behind that
_DECAY = 0.8  # of the average time
_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # of a container: microseconds in each period, or "max", and the period


class Bell:
    """A number that threads change when they have put a question, and one thread waits for."""

    def __init__(self) -> None:
        self._num_rung = ctypes.c_int64(0)
        self._last = time.perf_counter()  # when the last question came
        self._has_room = has_room()
        self._pace = float("inf")  # seconds between two questions, lately

    def ring(self) -> None:
        """Tell the waiting thread that a question was put. Rings of several threads at once may count as one."""
        self._num_rung.value += 1

    @property
    def num_rung(self) -> int:
        """How often it was rung; to be read before the thread looks whether there is a question already."""
        return self._num_rung.value

    def wait(self, num_rung: int) -> bool:
        """Wait for a ring behind the first `num_rung`, but hardly longer than one is usually awaited.

        Return whether there was one. If not, the caller must wait on by other means.
        """
        if self._pace > _MOST_SECONDS or not self._has_room:
            return False
        wait = function("dray_wait_for_change", ctypes.c_bool, ctypes.POINTER(ctypes.c_int64), *3 * [ctypes.c_int64])
        if wait is None:
            return False
        since = time.perf_counter() - self._last
        sleep, look = (int(1e9 * max(0.0, seconds)) for seconds in (_SLEEP * self._pace - since, _LOOK * self._pace))
        return bool(wait(self._num_rung, num_rung, sleep, look))

    def note_question(self) -> None:
        """Learn from a question that has come how long the next one will take."""
        now = time.perf_counter()
        passed, self._last = now - self._last, now
        is_new = self._pace > _MOST_SECONDS  # there is no pace yet, or a slow one
        self._pace = passed if is_new else _DECAY * self._pace + (1 - _DECAY) * passed


def has_room() -> bool:
    """Return whether this process may use a CPU more than torch's threads do."""
    return num_cpus() >= torch.get_num_threads() + 1


def num_cpus() -> float:
    """Return how many CPUs this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # which some systems do not have
    found = float(os.cpu_count() or 1) if affinity is None else float(len(affinity(0)))
    try:
        quota, period = _QUOTA.read_text().split()
    except (OSError, ValueError):
        quota, period = "max", "1"
    return found if quota == "max" else min(found, int(quota) / int(period))
