"""Exit codes of commands, and the lines that say why one did not do its work."""

import sys
from enum import IntEnum


class Exit(IntEnum):
    """Exit codes and their meaning."""

    COMPLETE = 0
    FAILED = 1  # what is committed stays
    BAD_CONFIGURATION = 2
    INCOMPLETE = 3  # stopped or interrupted; the same command goes on


def bad_configuration(error: ValueError | OSError) -> Exit:
    """Print why a command cannot begin, and return its exit code."""
    text = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    print(f"error: {text}", file=sys.stderr)
    return Exit.BAD_CONFIGURATION


def interrupted() -> Exit:
    """Print that the command was interrupted, and return its exit code."""
    print("\ninterrupted; the same command goes on from what is committed", file=sys.stderr)
    return Exit.INCOMPLETE
