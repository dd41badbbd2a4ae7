"""Environment variables with secrets, which no other process is to see.

A process hands its environment to every process that it starts, Ray's among them, and Linux shows the environment that
a process was started with in `/proc/PID/environ`.
"""

import ctypes
import os
from collections.abc import Iterable


def hide_variables(names: Iterable[str]) -> None:
    """Remove variables from the environment of this process, and their values from what the system shows of it.

    Call it once they have been read and before another process is started.
    """
    c_library = ctypes.CDLL(None)
    c_library.getenv.restype = ctypes.c_void_p
    for name in names:
        if (address := c_library.getenv(os.fsencode(name))) is not None:
            ctypes.memset(address, 0, len(ctypes.string_at(address)))  # `del` alone leaves the memory that /proc shows
        os.environ.pop(name, None)
