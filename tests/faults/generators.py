"""Generators for fault tests: the real one, slowed down and with a diary, and some with a fault built in."""

import asyncio
import os
import resource
from pathlib import Path
from typing import Any

import ray

from actors.engine.translation import EncodedRow
from actors.workers.engine_worker import EngineWorker
from tests.faults.diary import Diary
from tests.jobs.faulty import dies_over


def paced(diary: str, pause_s: float = 0.4, base: type[EngineWorker] = EngineWorker) -> type[EngineWorker]:
    """Return a generator that rests for `pause_s` before it runs rows and writes down what it does."""
    journal = Diary(Path(diary))

    class Paced(base):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._node = ray.get_runtime_context().get_node_id()
            journal.write(self._node, "loading")
            super().__init__(*args, **kwargs)
            journal.write(self._node, "loaded")

        def _read(self, unit: Any) -> Any:
            journal.write(self._node, "attempt", unit.unit_id)
            return super()._read(unit)

        async def _finish(self, rows: list[EncodedRow]) -> None:
            if rows:
                journal.write(self._node, "running", rows[0].row.row_id >> 32)
                await asyncio.sleep(pause_s)
            await super()._finish(rows)

        def _commit(self, unit: Any, *args: Any, **kwargs: Any) -> Any:
            journal.write(self._node, "committing", unit.unit_id)
            receipt = super()._commit(unit, *args, **kwargs)
            journal.write(self._node, "committed", unit.unit_id)
            return receipt

    return Paced


def poisoned(word: str, **pace: Any) -> type[EngineWorker]:
    """Return a paced generator whose process dies when a row with this word in its prompt runs."""

    return paced(base=dies_over(word), **pace)


def on_small_disk(flag: str, num_bytes: int, **pace: Any) -> type[EngineWorker]:
    """Return a paced generator that cannot write files of more than `num_bytes` while the file `flag` exists."""

    class OnSmallDisk(EngineWorker):
        def _commit(self, *args: Any, **kwargs: Any) -> Any:
            if not os.path.exists(flag):
                return super()._commit(*args, **kwargs)
            _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, most))  # Python ignores the signal that comes of it
            try:
                return super()._commit(*args, **kwargs)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

    return paced(base=OnSmallDisk, **pace)
