"""Generators whose rows fail, and retry generators that die at a given point."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from actors.engine.translation import EncodedRow
from actors.workers.generator import Generator
from actors.workers.retrier import RetryGenerator
from pipeline.run import amend
from tests.jobs.faulty import DeadlyLedger, Mortal

# What a unit goes through when its failed rows are tried again, in order.
RETRY_POINTS = (
    "before begin",
    "after begin",
    "before reading",
    "after reading",
    "generating",
    "before part",
    "after part",
    "before errors",
    "after errors",
    "after commit",
    "after finish",
)


def fails_over(word: str) -> type[Generator]:
    """Return a generator in which rows with this word in their prompt fail, and no others."""

    class Unlucky(Generator):
        async def _finish(self, rows: list[EncodedRow]) -> None:
            await super()._finish([row for row in rows if word not in row.prompt])
            for row in rows:
                if word in row.prompt:
                    for sequence in row.sequences:
                        sequence.fail("no luck")

    return Unlucky


def retry_dies_over(word: str) -> type[RetryGenerator]:
    """Return a retry generator whose process dies when a row with this word in its prompt runs."""

    class Poisoned(RetryGenerator):
        async def _finish(self, rows: list[EncodedRow]) -> None:
            if any(word in row.prompt for row in rows):
                os._exit(9)
            await super()._finish(rows)

    return Poisoned


def retry_dies_at_every_point(where: Path) -> type[RetryGenerator]:
    """Return a retry generator that dies at RETRY_POINTS[k] of unit k, once; the folder `where` records it."""

    class Dying(Mortal, RetryGenerator):
        points, folder = RETRY_POINTS, where

        def __init__(self, *args: Any, **named: Any) -> None:
            super().__init__(*args, **named)
            replace_file = amend.replace_file

            def replace_and_die(location: Any, *rest: Any) -> None:
                what = "part" if "/data/" in location.path else "errors"
                self.here(f"before {what}")
                replace_file(location, *rest)
                self.here(f"after {what}")

            amend.replace_file = replace_and_die
            self._ledger = DeadlyLedger(self, self._ledger)

    return Dying
