"""Loaded: an engine that a process has loaded, and what it says about itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # it brings torch, which a configuration does not need
    from actors.engine.token_engine import TokenEngine


@dataclass(frozen=True)
class Loaded:
    """An engine that a process has loaded, and what it says about itself."""

    engine: TokenEngine
    footer: dict[str, str | bool | int]  # what each part records: engines of one run may be on different machines
    facts: dict[str, Any]  # what the log says
    round_seconds: tuple[float, ...] = ()  # of a round by its draft length, where that was measured
    close: Callable[[], None] = lambda: None  # ends the processes that belong to it
