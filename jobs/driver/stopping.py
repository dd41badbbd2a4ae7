"""Stopping by SIGINT (Ctrl-C) or SIGTERM: a command begins no new unit, commits the units in flight, and ends.

While no unit is in flight, because the run is being planned or verified, it ends at once. Every command ends with
an exit code, and a line that says why it did not do its work.
"""

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from enum import IntEnum
from types import FrameType

from jobs.names import tell


def sigterm_interrupts() -> AbstractContextManager[None]:
    """Let SIGTERM raise KeyboardInterrupt in the main thread while the block runs; a second one ends the process."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise KeyboardInterrupt

    return _handling({signal.SIGTERM: interrupt})


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


@contextmanager
def graceful_stop(stop: Callable[[], None], grace_period_s: float, insist_after_s: float = 10.0) -> Iterator[None]:
    """Let SIGINT (Ctrl-C) or SIGTERM give units in flight some seconds to finish while the block runs.

    `stop`, after which no unit begins, is called in a thread: a signal may arrive in the middle of Ray.
    A second signal of either kind ends the run at once, by KeyboardInterrupt. It is raised again after some seconds if
    it was lost, as happens to exceptions in destructors and in callbacks of other libraries.
    `ray job stop` and Kubernetes send SIGTERM and, some time later, SIGKILL; what is committed stays then, too.
    """
    asked, interrupted, ended = threading.Event(), threading.Event(), threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            interrupted.set()
            raise KeyboardInterrupt
        asked.set()

    def stop_when_asked() -> None:
        asked.wait()
        if ended.is_set():
            return
        print(
            f"\nstopping: what is in flight gets {grace_period_s:g} s to finish, nothing new is begun; "
            "a second Ctrl-C or SIGTERM ends the run at once",
            file=sys.stderr,
            flush=True,
        )
        threading.Thread(target=stop, name="stop", daemon=True).start()  # it may wait for a cluster that is gone
        if not ended.wait(grace_period_s):
            _interrupt_main()

    def insist() -> None:
        interrupted.wait()
        while not ended.wait(insist_after_s):
            _interrupt_main()

    for work in (stop_when_asked, insist):
        threading.Thread(target=work, name=work.__name__, daemon=True).start()
    with _handling(dict.fromkeys((signal.SIGTERM, signal.SIGINT), on_signal)):
        try:
            yield
        finally:
            ended.set()
            interrupted.set()  # its thread waits for that, and then ends


@contextmanager
def _handling(handlers: Mapping[int, Callable[[int, FrameType | None], None]]) -> Iterator[None]:
    """Install signal handlers while the block runs, in the main thread, which alone can do that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt_main() -> None:
    """Interrupt the main thread as Ctrl-C does, which also wakes it if it waits."""
    ident = threading.main_thread().ident
    assert ident is not None
    signal.pthread_kill(ident, signal.SIGINT)


class Exit(IntEnum):
    """Exit codes and their meaning."""

    COMPLETE = 0
    FAILED = 1  # what is committed stays
    BAD_CONFIGURATION = 2
    INCOMPLETE = 3  # stopped or interrupted; the same command goes on
    HELD = 4  # another process writes this output, and was left to it


def bad_configuration(error: ValueError | OSError) -> Exit:
    """Print why a command cannot begin, and return its exit code."""
    text = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    tell(f"error: {text}")
    return Exit.BAD_CONFIGURATION


def interrupted(what_next: str = "") -> Exit:
    """Print that the command was interrupted, and return its exit code."""
    tell(f"\ninterrupted{what_next}")
    return Exit.INCOMPLETE
