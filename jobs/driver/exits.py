"""Exit codes of commands, and how a command with a configuration begins, before torch and Ray are imported."""

import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import TypeVar

from jobs.driver.stopping import sigterm_interrupts
from jobs.shadows import refuse_shadows_of_workers

_Config = TypeVar("_Config")


class Exit(IntEnum):
    """Exit codes and their meaning."""

    COMPLETE = 0
    FAILED = 1  # what is committed stays
    BAD_CONFIGURATION = 2
    INCOMPLETE = 3  # stopped or interrupted; the same command goes on


def program(name: str) -> str:
    """Return how the command `name` was called, for its help: by `dray`, or as a module."""
    return f"dray {name}" if Path(sys.argv[0]).name == "dray" else f"python -m jobs.{name}"


def configured(
    read: Callable[[Sequence[str]], _Config],
    arguments: Sequence[str] | None,
    work: Callable[[], Callable[[_Config], int]],
) -> int:
    """Return the exit code of a command with the configuration that `read` returns for its arguments.

    By default they are those of this process. `work` imports and returns what does the work: that takes seconds, in
    which `--help` and a wrong configuration have long been answered.
    """
    with sigterm_interrupts():
        try:
            config = read(sys.argv[1:] if arguments is None else arguments)
            refuse_shadows_of_workers()
            with _no_garbage_collection():
                do = work()
        except (ValueError, OSError) as error:
            return bad_configuration(error)
        except KeyboardInterrupt:
            return interrupted()
        try:
            return do(config)
        except KeyboardInterrupt:  # of a command that has nothing to end well
            print("\ninterrupted", file=sys.stderr)
            return Exit.INCOMPLETE


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Collect no garbage while the block imports: all that modules make stays, and looking at it costs an eighth."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def bad_configuration(error: ValueError | OSError) -> Exit:
    """Print why a command cannot begin, and return its exit code."""
    text = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    print(f"error: {text}", file=sys.stderr)
    return Exit.BAD_CONFIGURATION


def interrupted() -> Exit:
    """Print that the command was interrupted, and return its exit code."""
    print("\ninterrupted; the same command goes on from what is committed", file=sys.stderr)
    return Exit.INCOMPLETE
