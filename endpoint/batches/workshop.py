"""Workshop: what the drivers of all batches share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from endpoint.batches.files import FileStore
from endpoint.batches.input_check import InputRules
from endpoint.batches.run import RunMaker
from endpoint.batches.store import BatchStore
from endpoint.batches.units import UnitWriter
from endpoint.service.served_model import ServedModel
from pipeline.text.codec import TextCodec


@dataclass(frozen=True, kw_only=True)
class BatchModel:
    """A model that batches may ask for. At most as many of its units are under way as `places` has."""

    served: ServedModel
    runs: RunMaker
    codec: TextCodec
    units: UnitWriter
    places: asyncio.Semaphore

    @classmethod
    def of(
        cls, served: ServedModel, codec: TextCodec, units: UnitWriter, rows_per_unit: int, max_units: int
    ) -> BatchModel:
        """Return a served model whose engines do at most `max_units` units of `rows_per_unit` rows at once."""
        return cls(
            served=served,
            runs=RunMaker(served, codec, rows_per_unit),
            codec=codec,
            units=units,
            places=asyncio.Semaphore(max_units),
        )


@dataclass(frozen=True, kw_only=True)
class Workshop:
    """What the drivers of all batches share."""

    files: FileStore
    batches: BatchStore
    models: Mapping[str | None, BatchModel]  # by the adapter's name; None is the endpoint's own model
    ledgers: Any  # the actor of their Ledgers
    max_units: int  # of one batch at once
    rules: Callable[[str], InputRules]  # by endpoint
    keep_s: float
    clock: Callable[[], float]
