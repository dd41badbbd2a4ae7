"""EngineLoop: one engine, driven by one thread, shared by everybody who awaits sequences from it.

Several work units (or requests) in flight feed the same engine, so its slots stay full across their borders.

If memory runs out, the engine goes on with half the slots, and what was running begins again (it writes the same). What
runs out of memory even alone fails alone. Prompts that are only scored are treated alike; each of their chunks runs
between two steps, so one is alone as soon as a single slot is left, whose memory is reserved whoever stands in it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator
from collections.abc import Sequence as Seq
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from traceback import clear_frames

from actors.engine.delta_stream import DeltaStream
from actors.engine.deltas import Delta, Growths
from actors.engine.requests import FailedError
from actors.engine.watchdog import Watchdog
from decoding.device import is_out_of_memory
from decoding.engine.engine import Engine, PromptError
from decoding.sequence import Sequence, TokenLogprobs
from pipeline.logs import Event, failure_event

_HANG_TIMEOUT_S = 900.0
_MOST_TOLD_PER_S = 500.0  # deltas of all streams that are worth telling: each costs a message between processes
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EngineNumbers:
    """What an engine does now, and what it has done since its process loaded it."""

    num_slots: int
    num_running: int
    num_waiting: int
    busy_seconds: float  # in steps
    round_seconds: float  # in rounds, which are the part of a step that is not reading prompts
    num_out_of_memory: int  # how often memory ran out


class EngineLoop:
    """Turns an engine's steps into awaitable sequences. Belongs to the event loop that first awaits it."""

    def __init__(self, engine: Engine, hang_timeout_s: float = _HANG_TIMEOUT_S) -> None:
        """Take over `engine`; nobody else may step it. A step that takes longer than that ends the process."""
        self.engine = engine
        self._watchdog = Watchdog(hang_timeout_s)
        self._inbox: list[Sequence] = []
        self._unfinished: dict[Sequence, asyncio.Future[None]] = {}
        self._streams: list[DeltaStream] = []
        self._scoring = asyncio.Lock()  # the engine has one place for prompts that are only scored
        self._stepping = (
            asyncio.Lock()
        )  # held over a step and what follows from it: the engine is not made anew between
        self._shrinking: asyncio.Task[bool] | None = None  # for a prompt that is scored
        self._busy_seconds = self._earlier_round_seconds = 0.0
        self._num_out_of_memory = 0
        self._pump: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine")

    async def finish(self, sequences: Seq[Sequence]) -> None:
        """Return when all these sequences have finished. If the engine itself fails, everybody who waits fails.

        They run longest first, by estimate, so that few are left running alone at the end. If the wait is cancelled,
        nobody wants them any more: those that do not write yet are forgotten, the others end with their next token.
        """
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in sequences]
        self._unfinished.update(zip(sequences, futures, strict=True))
        self._inbox.extend(sorted(sequences, key=_estimated_length, reverse=True))
        if self._pump is None or self._pump.done():
            self._pump = loop.create_task(self._run())
        try:
            await asyncio.gather(*futures)
        except asyncio.CancelledError:
            self._drop(sequences)
            raise

    async def stream(self, sequences: Seq[Sequence], tell_every_s: float = 0.0) -> AsyncIterator[list[Delta]]:
        """What each step adds to any of these sequences; what comes while the caller is busy comes together.

        So does what comes within `tell_every_s` seconds, or sooner after the last than so many streams can be told.

        Nothing, an empty list, says that the first of them has a slot from the next step on. Ends when all have
        finished. Closing it, or cancelling who waits for it, is as cancelling `finish`.
        """
        stream = DeltaStream(Growths(sequences), frozenset(sequences), tell_every_s)
        self._streams.append(stream)
        finishing = asyncio.ensure_future(self.finish(sequences))
        finishing.add_done_callback(lambda _: stream.is_new.set())
        try:
            while True:
                await stream.is_new.wait()
                stream.is_new.clear()
                if stream.error is not None:
                    raise stream.error
                deltas, stream.deltas = stream.deltas, []
                begins, stream.begins = stream.begins, False
                if deltas or begins:
                    yield deltas
                elif finishing.done():
                    await finishing  # the engine's failure, if it failed
                    return
                if finishing.done():
                    stream.is_new.set()
        finally:
            self._streams.remove(stream)
            finishing.cancel()
            await asyncio.gather(finishing, return_exceptions=True)

    async def prompt_logprobs(self, prompt_token_ids: Seq[int], num_top: int) -> list[TokenLogprobs]:
        """Of each token of a prompt but its first, given those before it; a chunk between any two steps.

        Raises PromptError for a prompt that the engine cannot read, FailedError for one that memory does not last for
        though a single slot is left, and what else the engine fails with.
        """
        async with self._scoring:
            while True:
                engine = self.engine
                try:
                    return await self._scores(engine, prompt_token_ids, num_top)
                except PromptError:
                    raise
                except Exception as error:
                    is_memory = is_out_of_memory(error)
                    if is_memory:
                        clear_frames(error.__traceback__)
                    # Who leaves meanwhile must not leave half an engine.
                    self._shrinking = asyncio.create_task(self._make_room(engine, error))
                    if await asyncio.shield(self._shrinking):
                        continue
                    if is_memory and engine.options.num_slots == 1:
                        raise FailedError("memory ran out over a prompt that is scored, beside a single slot") from None
                    raise

    async def _scores(self, engine: Engine, prompt_token_ids: Seq[int], num_top: int) -> list[TokenLogprobs]:
        chunks, logprobs = engine.prompt_logprobs(prompt_token_ids, num_top), list[TokenLogprobs]()
        while True:
            chunk = await asyncio.get_running_loop().run_in_executor(self._thread, self._next_chunk, chunks)
            if chunk is None:
                return logprobs
            logprobs += chunk

    async def _make_room(self, engine: Engine, error: Exception) -> bool:
        """Whether there is another engine now, for a prompt that this one failed over to be scored from its start.

        Where none can be made, everybody who waits fails: the old one is gone by then.
        """
        is_memory = is_out_of_memory(error)
        self._num_out_of_memory += is_memory
        async with self._stepping:
            if self.engine is not engine:
                return True
            if not is_memory or engine.options.num_slots == 1:
                return False
            if await self._go_on_smaller():
                return True
            await self._fail_everybody(error)
            return False

    def _next_chunk(self, chunks: Iterator[list[TokenLogprobs]]) -> list[TokenLogprobs] | None:
        with self._watchdog:
            return next(chunks, None)

    def _drop(self, sequences: Seq[Sequence]) -> None:
        dropped, waiting = set(sequences), set(self._inbox)
        self._inbox = [sequence for sequence in self._inbox if sequence not in dropped]
        for sequence in dropped & waiting:
            del self._unfinished[sequence]
        self._thread.submit(self._drop_from_engine, dropped - waiting)  # between two steps, not in one

    def _drop_from_engine(self, sequences: set[Sequence]) -> None:
        self.engine.drop(sequences)

    def numbers(self) -> EngineNumbers:
        """The numbers as they are now; any thread may ask."""
        engine = self.engine
        num_running = engine.num_running
        return EngineNumbers(
            num_slots=engine.options.num_slots,
            num_running=num_running,
            num_waiting=max(0, len(self._unfinished) - num_running),
            busy_seconds=self._busy_seconds,
            round_seconds=self._earlier_round_seconds + engine.round_seconds,
            num_out_of_memory=self._num_out_of_memory,
        )

    async def _run(self) -> None:
        while await self._advance():
            pass

    async def _advance(self) -> bool:
        """One step, and what follows from it; False if there was nothing to do, or the engine failed."""
        loop = asyncio.get_running_loop()
        async with self._stepping:
            if not self._inbox and not self.engine.has_work:
                return False
            newcomers, self._inbox = self._inbox, []
            try:
                finished = await loop.run_in_executor(self._thread, self._step, newcomers, loop)
            except Exception as error:  # noqa: BLE001 - handed to everybody who waits
                if is_out_of_memory(error):
                    # They hold the failed step's tensors. Not in the thread: that would end this coroutine.
                    clear_frames(error.__traceback__)
                    self._num_out_of_memory += 1
                    if await self._go_on_smaller():
                        return True
                await self._fail_everybody(error)
                return False
            for stream in self._streams:
                stream.look(len(self._streams) / _MOST_TOLD_PER_S)
            for sequence in finished:
                future = self._unfinished.pop(sequence)
                if not future.done():
                    future.set_result(None)
            return True

    async def _fail_everybody(self, error: Exception) -> None:
        """Who waits gets the error, and who comes while the engine forgets them: nobody would ever wake them."""
        # In its thread, behind what was dropped meanwhile.
        await asyncio.get_running_loop().run_in_executor(self._thread, self.engine.clear)
        for future in self._unfinished.values():
            if not future.done():
                future.set_exception(error)
        self._unfinished.clear()
        self._inbox.clear()

    def _tell_who_begins(self, up_next: set[Sequence]) -> None:
        for stream in self._streams:
            stream.tell_that_it_begins(up_next)

    def _step(self, newcomers: list[Sequence], loop: asyncio.AbstractEventLoop) -> list[Sequence]:
        started = time.monotonic()
        try:
            with self._watchdog:
                self.engine.submit(newcomers)
                # Said before the step, which may be the process's last, and known behind whatever was dropped.
                loop.call_soon_threadsafe(self._tell_who_begins, self.engine.up_next(()))
                return self.engine.step()
        finally:
            self._busy_seconds += time.monotonic() - started

    async def _go_on_smaller(self) -> bool:
        """Half the slots; with a single one, without the sequence that stood in it. False if that cannot be done.

        The engine is made anew in its thread; who waits is looked after here, where others come and go.
        """
        num_slots, in_flight = self.engine.options.num_slots, self.engine.in_flight
        if num_slots == 1 and not in_flight:
            return False
        fewer, round_seconds = max(1, num_slots // 2), self.engine.round_seconds
        _log.warning(Event("out of memory", slots=num_slots, going_on_with=fewer, running=len(in_flight)))
        try:
            smaller = await asyncio.get_running_loop().run_in_executor(self._thread, self.engine.with_slots, fewer)
        except Exception as error:  # noqa: BLE001 - whoever waits gets the first error; this one is logged
            _log.error(failure_event("engine not made anew", error))
            return False
        self._earlier_round_seconds += round_seconds
        self.engine = smaller
        self._unfinished = {sequence: future for sequence, future in self._unfinished.items() if not future.done()}
        for sequence in self._unfinished:
            sequence.restart()
        for stream in self._streams:
            stream.growths.begin_again()
        if num_slots == 1:  # the engine hands a failed sequence back with its next step
            in_flight[0].fail("memory ran out although nothing else ran; lower sampling.max_tokens, or use more memory")
        self._inbox = list(self._unfinished)
        return True


def _estimated_length(sequence: Sequence) -> int:
    """Of prompt and output, to the next power of two: what is about as long stays together, samples and neighbours.

    Neighbours in the input often begin alike, and what begins alike is read once while it is in the engine together.
    """
    return (len(sequence.prompt_token_ids) + sequence.max_tokens).bit_length()
