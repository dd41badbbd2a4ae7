"""Workshop: what the drivers of all batches share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from endpoint.batches.files import FileStore
from endpoint.batches.input_check import InputRules
from endpoint.batches.run import RunMaker
from endpoint.batches.store import BatchStore
from endpoint.batches.units import UnitWriter
from pipeline.text.codec import TextCodec


@dataclass(frozen=True, kw_only=True)
class Workshop:
    """What the drivers of all batches share. At most as many units are under way as `places` has."""

    files: FileStore
    batches: BatchStore
    runs: RunMaker
    codec: TextCodec
    units: UnitWriter
    ledgers: Any  # the actor of their Ledgers
    places: asyncio.Semaphore
    max_units: int  # of one batch at once
    rules: Callable[[str], InputRules]  # by endpoint
    fingerprint: str
    keep_s: float
    clock: Callable[[], float]
