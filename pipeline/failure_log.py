"""What a log may say of an exception: of which types it and its causes are, and where each was raised.

No message and no value: either may quote what somebody asked.
"""

from __future__ import annotations

import traceback
from typing import Any

from pipeline.logs import Event


def failure_event(what: str, error: BaseException, **fields: Any) -> Event:
    """The event of a failure: `error` are the types, outermost first, and `stack` the places, each file, line, name."""
    kinds, stack, seen = [], [], set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        kinds.append(type(cause).__name__)
        frames = traceback.extract_tb(cause.__traceback__)
        stack += [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
        cause = cause.__cause__ or cause.__context__
    return Event(what, **fields, error=kinds, stack=stack)
