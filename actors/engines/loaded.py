"""Loaded: an engine and what it says about itself."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from decoding.engine.token_engine import TokenEngine


@dataclass(frozen=True)
class Loaded:
    """An engine that a process has loaded, and what it says about itself."""

    engine: TokenEngine
    footer: dict[str, str | bool | int]  # what each part records: engines of one run may be on different machines
    facts: dict[str, Any]  # what the log says
    round_seconds: tuple[float, ...] = ()  # of a round by its draft length, where that was measured
    close: Callable[[], None] = lambda: None  # ends the processes that belong to it
