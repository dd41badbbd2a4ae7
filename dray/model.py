"""Model: a target and its draft in this process, without Ray."""

import asyncio
import weakref
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import replace
from datetime import datetime
from threading import Thread, current_thread
from typing import Any

from actors.engine.loop import HANG_TIMEOUT_S
from actors.engine.translation import EncodedRow
from actors.engines.loading import LoadedEngine
from actors.rows.plain import PlainRows
from actors.settings import GeneratorSettings
from actors.workers.loose_rows import LooseRows
from decoding.sampling_params import SamplingParams
from dray.inputs import Source
from jobs.driver.chosen import choose_drafter, choose_dtype
from jobs.driver.plan import settled
from pipeline.streaming.pool import ActorPool

Out = list[dict[str, Any]]  # the output rows of an input row
_MOST_SECONDS_TO_END = 10.0  # that a program waits for its open streams
_READ_AHEAD = 4  # rows for each slot of the engine


class Model:
    """A target and its draft, loaded in this process by `load_model`, for `generate` and `stream`.

    Calls from several threads share the engine. The memory is free again when nothing holds the model any more.
    """

    def __init__(self, settings: GeneratorSettings) -> None:
        """Load the models. Raises ValueError with the reason why they cannot be run."""
        settings, _ = choose_drafter(choose_dtype(settings)[0])  # as one line of the command chooses them
        self.settings, _ = settled(settings, ActorPool(), "local")
        self._engine = LoadedEngine(self.settings, None, HANG_TIMEOUT_S)
        self._events = asyncio.new_event_loop()  # in a thread of its own: that of a notebook runs already
        thread = Thread(target=_run, args=[self._events], name="dray", daemon=True)
        thread.start()
        weakref.finalize(self, _end, self._events, thread)  # also where a program ends with a stream that is open

    def __repr__(self) -> str:
        """Return the names of the models, with the device and the dtype in which they run."""
        models = self.settings.models
        return f"<dray.Model {models.target!r}, draft {models.draft!r}, {models.device}, {models.dtype}>"

    @property
    def template_marks(self) -> tuple[str, ...] | None:
        """The marks of the chat template, by which a prompt is known that was rendered already; None without one."""
        return self._engine.codec.template_marks

    def finished(self, source: Source, sampling: SamplingParams, seed: int) -> Iterator[tuple[int, Out]]:
        """Yield the number of each row with its output rows, as soon as it has finished.

        Some rows are read ahead. A generator that is closed, or that an exception ends, drops what is under way.
        """
        engine, settings = self._engine, replace(self.settings, sampling=sampling, seed=seed)
        codec = engine.codec if settings.chat.moment else replace(engine.codec, moment=datetime.now())
        rows = LooseRows(PlainRows(settings, engine.loop.engine, codec, engine.loop.finish))
        most, under_way = _READ_AHEAD * engine.loop.stats().num_slots, dict[Future[None], tuple[int, EncodedRow]]()
        try:
            for row_id, row in enumerate(source.rows):
                encoded = rows.encode(row, row_id)
                if not isinstance(encoded, EncodedRow):
                    yield row_id, rows.decode(encoded, row_id)
                    continue
                work = asyncio.run_coroutine_threadsafe(rows.rows.finish([encoded]), self._events)
                under_way[work] = row_id, encoded
                if len(under_way) >= most:
                    yield from _take(under_way, rows)
            while under_way:
                yield from _take(under_way, rows)
        finally:
            for work in under_way:
                work.cancel()


def _take(under_way: dict[Future[None], tuple[int, EncodedRow]], rows: LooseRows) -> Iterator[tuple[int, Out]]:
    """Wait until rows have finished, and yield them; raise what the engine failed with."""
    for work in wait(under_way, return_when=FIRST_COMPLETED).done:
        row_id, encoded = under_way.pop(work)
        work.result()
        yield row_id, rows.decode(encoded, row_id)


def _end(events: asyncio.AbstractEventLoop, thread: Thread) -> None:
    events.call_soon_threadsafe(events.stop)
    if thread is not current_thread():
        thread.join(_MOST_SECONDS_TO_END)


def _run(events: asyncio.AbstractEventLoop) -> None:
    events.run_forever()
    left = asyncio.all_tasks(events)
    for task in left:
        task.cancel()
    if left:
        events.run_until_complete(asyncio.wait(left))
    events.close()
