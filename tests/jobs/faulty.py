"""Generators whose rows fail, and generators that die at a given point, for real: by `os._exit` in the process."""

import asyncio
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from actors.engine.translation import EncodedRow
from actors.workers.engine_worker import EngineWorker
from pipeline.run import commit

# What a unit goes through, in order.
POINTS = (
    "before begin",
    "after begin",
    "before reading",
    "after reading",
    "generating",
    "before errors",
    "after errors",
    "before part",
    "before link",
    "after link",
    "after part",
    "after commit",
    "after finish",
)
# What it goes through when its failed rows are tried again, in order.
RETRY_POINTS = (
    *POINTS[: POINTS.index("generating") + 1],
    *("before part", "after part", "before errors", "after errors", "after commit", "after finish"),
)


class Mortal(EngineWorker):
    """Dies at `points[k]` of unit k, once; `folder` records where. Subclasses call `here` at other points."""

    points: tuple[str, ...]
    folder: Path
    _unit_id = -1

    def here(self, point: str) -> None:
        """Die if this is the point of the unit."""
        seen = self.folder / f"{point} {self._unit_id}"
        if 0 <= self._unit_id < len(self.points) and self.points[self._unit_id] == point and not seen.exists():
            seen.touch()
            os._exit(9)

    def between(self, before: str, function: Any, after: str) -> Any:
        """Return the function with a point before and one after each call."""

        def call(*args: Any) -> Any:
            self.here(before)
            result = function(*args)
            self.here(after)
            return result

        return call

    async def _attempt(self, unit: Any, is_backup: bool) -> Any:
        if is_backup:
            return await super()._attempt(unit, is_backup)
        self._unit_id = unit.unit_id
        self.here("before begin")
        receipt = await super()._attempt(unit, is_backup)
        self.here("after finish")
        return receipt

    def _read(self, unit: Any) -> Any:
        return self.between("before reading", super()._read, "after reading")(unit)

    async def _finish(self, rows: list[EncodedRow]) -> None:
        step = self.engine.loop.engine.step

        def step_and_die() -> Any:
            self.here("generating")
            return step()

        self.engine.loop.engine.step = step_and_die  # type: ignore[method-assign]
        await super()._finish(rows)


def dies_at_every_point(where: Path) -> type[EngineWorker]:
    """Return a generator that dies at POINTS[k] of unit k, once; the folder `where` records it."""

    class Dying(Mortal):
        points, folder = POINTS, where

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            commit.replace_file = self.between("before errors", commit.replace_file, "after errors")
            commit.create_file = self.between("before part", commit.create_file, "after part")
            os.link = self.between("before link", os.link, "after link")
            self.ledger = DeadlyLedger(self, self.ledger)

    return Dying


class DeadlyLedger:
    """The run's ledger, which kills its worker around some calls."""

    def __init__(self, generator: Any, ledger: Any) -> None:
        self._ledger = ledger
        self.begin = _Call(generator, ledger.begin, after="after begin")
        self.finish = _Call(generator, ledger.finish, before="after commit")

    def __getattr__(self, method: str) -> Any:
        return getattr(self._ledger, method)


class _Call:
    def __init__(self, generator: Any, method: Any, before: str = "", after: str = "") -> None:
        self._generator, self._method, self._before, self._after = generator, method, before, after

    async def remote(self, *args: Any) -> Any:
        self._generator.here(self._before)
        result = await self._method.remote(*args)
        self._generator.here(self._after)
        return result


def retry_dies_at_every_point(where: Path) -> type[EngineWorker]:
    """Return a retry generator that dies at RETRY_POINTS[k] of unit k, once; the folder `where` records it."""

    class Dying(Mortal):
        points, folder = RETRY_POINTS, where

        def __init__(self, *args: Any, **named: Any) -> None:
            super().__init__(*args, **named)
            replace_file = commit.replace_file

            def replace_and_die(location: Any, *rest: Any) -> None:
                what = "part" if "/data/" in location.path else "errors"
                self.between(f"before {what}", replace_file, f"after {what}")(location, *rest)

            commit.replace_file = replace_and_die
            self.ledger = DeadlyLedger(self, self.ledger)

    return Dying


def fails_at_a_place(where: Path, error: Exception, num_places: int = 1) -> type[EngineWorker]:
    """Return a generator of which the first processes fail with this error whenever they are to commit a unit."""

    class Sick(EngineWorker):
        def _commit(self, *unit: Any) -> Any:
            own = where / str(os.getpid())
            if own.exists() or len(list(where.iterdir())) < num_places:
                own.touch()
                raise error
            return super()._commit(*unit)

    return Sick


def fails_over(word: str) -> type[EngineWorker]:
    """Return a generator in which rows with this word in their prompt fail, and no others."""

    class Unlucky(EngineWorker):
        async def _finish(self, rows: list[EncodedRow]) -> None:
            await super()._finish([row for row in rows if word not in row.prompt.text])
            for row in rows:
                if word in row.prompt.text:
                    for sequence in row.sequences:
                        sequence.fail("no luck")

    return Unlucky


def dies_over(word: str) -> type[EngineWorker]:
    """Return a generator whose process dies when a row with this word in its prompt runs."""

    class Poisoned(EngineWorker):
        async def _finish(self, rows: list[EncodedRow]) -> None:
            if any(word in row.prompt.text for row in rows):
                os._exit(9)
            await super()._finish(rows)

    return Poisoned


def hangs_once(folder: Path) -> type[EngineWorker]:
    """Return a generator whose engine hangs in its third step, in one process; `folder` records it."""

    class Hanging(EngineWorker):
        async def _finish(self, rows: list[EncodedRow]) -> None:
            step, num_steps = self.engine.loop.engine.step, 0

            def step_or_hang() -> Any:
                nonlocal num_steps
                num_steps += 1
                seen = folder / "hung"
                if num_steps == 3 and not seen.exists():
                    seen.touch()
                    threading.Event().wait()
                return step()

            self.engine.loop.engine.step = step_or_hang  # type: ignore[method-assign]
            await super()._finish(rows)

    return Hanging


def never_finishes(folder: Path) -> type[EngineWorker]:
    """Return a generator that never finishes a row in the first process that has one; `folder` records which."""

    class Dawdling(EngineWorker):
        async def _finish(self, rows: list[EncodedRow]) -> None:
            chosen = folder / "slow"
            with suppress(FileExistsError), chosen.open("x") as file:
                file.write(self.workplace.process)
            if chosen.read_text() == self.workplace.process:
                await asyncio.Event().wait()
            await super()._finish(rows)

    return Dawdling


def forges_at_a_place(chosen: Path) -> type[EngineWorker]:
    """Return a generator of which the process that commits first forges a token of each row; `chosen` records it."""

    class Forged:
        def __init__(self, rows: Any) -> None:
            self._rows = rows

        def __getattr__(self, name: str) -> Any:
            return getattr(self._rows, name)

        def decode(self, row: EncodedRow) -> list[dict[str, Any]]:
            found = self._rows.decode(row)
            for each in found:
                each["token_ids"] = [each["token_ids"][0] ^ 1, *each["token_ids"][1:]]
            return found  # type: ignore[no-any-return]

    class Forging(EngineWorker):
        def _commit(self, *unit: Any) -> Any:
            with suppress(FileExistsError), chosen.open("x") as file:
                file.write(self.workplace.process)
                self.rows = Forged(self.rows)  # type: ignore[assignment]
            return super()._commit(*unit)

    return Forging
