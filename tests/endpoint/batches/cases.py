"""A batch on storage, the processes that drive it, and replicas that die: all in this process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ray.exceptions import ActorDiedError

from actors.engines.loading import load_codec
from actors.workers.batch_worker import UnitOrder
from actors.workers.replica import Replica
from decoding.sequence import Sequence
from endpoint.batches.batch import ENDED, Batch, BatchSettings
from endpoint.batches.process import Batches
from endpoint.batches.store import BatchStore, FileStore, StoredFile, new_id
from endpoint.batches.workshop import Outcome
from endpoint.service.service import ServiceSettings
from tests.clock import Clock
from tests.endpoint.batches.asking import COMPLETIONS, content, line, texts
from tests.endpoint.batches.driving import batch_model, make_batches
from tests.endpoint.in_process import MODEL, settings_of

NUM_ROWS, ROWS_PER_UNIT = 12, 4
LINES = [line(number, temperature=1, seed=None) for number in range(NUM_ROWS)]
SERVICE = ServiceSettings(model=MODEL)


@dataclass
class Watched:
    """Units that a replica does, with a word to say before and after each."""

    replica: Replica
    before: Callable[[int], Awaitable[object]] | None = None
    after: Callable[[int], object] | None = None
    num_done: int = 0

    async def write_unit(self, order: UnitOrder) -> Outcome:
        if self.before is not None:
            await self.before(self.num_done)
        outcome = await self.replica.write_unit(order)
        self.num_done += 1
        if self.after is not None:
            self.after(self.num_done)
        return outcome


@dataclass
class Case:
    """One batch on storage, and what drives it."""

    folder: Path
    pair: tuple[str, str]
    clock: Clock = field(default_factory=Clock)
    root: str = ""  # the folder, unless given

    def __post_init__(self) -> None:
        self.clock.now, self.root = 1000.0, self.root or str(self.folder)
        self.settings = BatchSettings(path=self.root, rows_per_unit=ROWS_PER_UNIT)
        self.files = FileStore(self.root, self.clock)
        self.file_id, self.batch_id = new_id("file"), new_id("batch")
        with self.files.writing("me", self.file_id) as stream:
            stream.write(content(LINES))
        values = {"bytes": 1, "created_at": 0, "expires_at": 9999, "filename": "f"}
        self.files.add("me", StoredFile(id=self.file_id, purpose="batch", **values))
        self.store = BatchStore(self.files.root, self.files.temporary)
        self.store.create(
            Batch(
                id=self.batch_id,
                owner="me",
                endpoint=COMPLETIONS,
                input_file_id=self.file_id,
                model=MODEL,
                created_at=1000,
                expires_at=2000,
            )
        )

    @property
    def batch(self) -> Batch:
        found = BatchStore(self.files.root, self.files.temporary).read("me", self.batch_id)
        assert found is not None
        return found

    @property
    def run_path(self) -> Path:
        return self.folder / "me" / "batches" / self.batch_id / "run"

    def batches(self, units: Any, pair: tuple[str, str] | None = None, **options: Any) -> Batches:
        """Return drivers as a new process has them."""
        settings = settings_of(pair or self.pair)
        codec = load_codec(settings)
        own = {name: options.pop(name) for name in ("fingerprint",) if name in options}
        max_units = options.get("max_units", 2)
        rows = self.settings.rows_per_unit
        model = batch_model(settings, codec, SERVICE, units, rows_per_unit=rows, max_units=max_units, **own)
        adapters = options.pop("adapters", ())
        return make_batches([model, *adapters], self.settings, clock=self.clock, **options)

    async def drive(self, batches: Batches, until: Callable[[], bool] | None = None) -> None:
        """Drive until the batch has ended or something else holds, then end the process as a kill does."""
        running = asyncio.create_task(batches.run())
        async with asyncio.timeout(100):
            while not (until() if until is not None else self.batch.status in ENDED):
                assert not running.done()
                await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    def results(self, file_id: str | None) -> dict[str, Any]:
        if file_id is None:
            return {}
        found = [json.loads(each) for each in b"".join(self.files.chunks("me", file_id)).splitlines()]
        return {each["custom_id"]: each for each in found}

    def check_complete(self, expected: dict[str, str]) -> None:
        """Check that each row has its text, once."""
        batch = self.batch
        assert (batch.status, batch.num_rows, batch.num_completed, batch.num_failed) == (
            "completed",
            NUM_ROWS,
            NUM_ROWS,
            0,
        )
        assert texts(self.results(batch.output_file_id)) == expected
        assert batch.error_file_id is None


class DyingReplicas:
    """A deployment whose replica dies in the step that reads a prompt with this word; another one then comes."""

    def __init__(self, pair: tuple[str, str], killer: str) -> None:
        self._pair, self._killer = pair, killer
        self.num_deaths = 0
        self._replica = self._new()
        self.write_unit = self

    def remote(self, order: UnitOrder) -> Any:
        return _Response(self._write(order))

    async def _write(self, order: UnitOrder) -> Outcome:
        replica, dead = self._replica
        unit = asyncio.ensure_future(replica.write_unit(order))
        died = asyncio.ensure_future(dead.wait())
        await asyncio.wait({unit, died}, return_when=asyncio.FIRST_COMPLETED)
        died.cancel()
        if dead.is_set():
            unit.cancel()
            await asyncio.gather(unit, return_exceptions=True)
            raise ActorDiedError
        return unit.result()

    def _new(self) -> tuple[Replica, asyncio.Event]:
        replica, dead = Replica(settings_of(self._pair)), asyncio.Event()
        loop, codec = replica._loop, replica._codec
        finish = loop.stream

        def stream(sequences: list[Sequence], *arguments: Any, **options: Any) -> Any:
            if any(self._killer in codec.decode(each.prompt_token_ids) for each in sequences):
                self.num_deaths += 1
                self._replica = self._new()
                dead.set()
            return finish(sequences, *arguments, **options)

        loop.stream = stream  # type: ignore[method-assign]
        return replica, dead


class _Response:
    def __init__(self, coroutine: Any) -> None:
        self._task = asyncio.ensure_future(coroutine)

    def __await__(self) -> Any:
        return self._task.__await__()

    def cancel(self) -> None:
        self._task.cancel()
