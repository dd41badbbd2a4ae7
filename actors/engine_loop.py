"""EngineLoop: one engine, driven by one thread, shared by everybody who awaits sequences from it.

Several work units (or requests) in flight feed the same engine, so its slots stay full across their borders.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence as Seq
from concurrent.futures import ThreadPoolExecutor

from decoding.engine import Engine
from decoding.sequence import Sequence


class EngineLoop:
    """Turns an engine's steps into awaitable sequences. Belongs to the event loop that first awaits it."""

    def __init__(self, engine: Engine) -> None:
        """Take over `engine`; nobody else may step it."""
        self.engine = engine
        self._inbox: list[Sequence] = []
        self._unfinished: dict[Sequence, asyncio.Future[None]] = {}
        self._pump: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine")

    async def finish(self, sequences: Seq[Sequence]) -> None:
        """Return when all these sequences have finished. If the engine itself fails, everybody who waits fails.

        They run longest first, by estimate, so that few are left running alone at the end.
        """
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in sequences]
        self._unfinished.update(zip(sequences, futures, strict=True))
        self._inbox.extend(sorted(sequences, key=_estimated_length, reverse=True))
        if self._pump is None or self._pump.done():
            self._pump = loop.create_task(self._run())
        await asyncio.gather(*futures)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._inbox or self.engine.has_work:
            newcomers, self._inbox = self._inbox, []
            try:
                finished = await loop.run_in_executor(self._thread, self._step, newcomers)
            except Exception as error:  # noqa: BLE001 - handed to everybody who waits, none of whom would ever wake
                for future in self._unfinished.values():
                    if not future.done():
                        future.set_exception(error)
                self._unfinished.clear()
                self._inbox.clear()
                self.engine.clear()
                return
            for sequence in finished:
                future = self._unfinished.pop(sequence)
                if not future.done():
                    future.set_result(None)

    def _step(self, newcomers: list[Sequence]) -> list[Sequence]:
        self.engine.submit(newcomers)
        return self.engine.step()


def _estimated_length(sequence: Sequence) -> int:
    """Of prompt and output, to the next power of two: what is about as long stays together, samples and neighbours.

    Neighbours in the input often begin alike, and what begins alike is read once while it is in the engine together.
    """
    return (len(sequence.prompt_token_ids) + sequence.max_tokens).bit_length()
