"""EngineLoop: one engine, driven by one thread, shared by all callers that await sequences from it.

Several work units (or requests) in flight feed the same engine, so its slots stay full across their borders.

If memory runs out, the engine goes on with half the slots, and rows in flight go on from the tokens that they have. A
row that runs out of memory even alone fails alone. Texts that are scored are rows, too.

Sequences in the background (those of batches) enter the engine only where the others leave slots: `backlog.py`.

If the target is lost over the same rows again and again, the process ends: the ledger then finds the row that is the
reason, as it does for every row that kills processes.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from collections.abc import Sequence as Seq
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from traceback import clear_frames

import torch

from actors.engine.backlog import Backlog
from actors.engine.deltas import Delta, DeltaStream
from actors.engine.watchdog import Watchdog, end_process
from actors.errors import DeviceFault
from decoding.device import is_device_fault, is_out_of_memory
from decoding.engine.scored_text import ScoredText
from decoding.engine.token_engine import TargetLostError, TokenEngine
from decoding.pace.learned import Learned
from decoding.sequence import Sequence
from pipeline.logs import Event, failure_event

HANG_TIMEOUT_S = 900.0  # for a step
_MAX_SENT_PER_S = 500.0  # messages of all streams together: each costs one between processes
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EngineStats:
    """What an engine does now, and what it has done since its process loaded it."""

    num_slots: int
    num_running: int
    num_waiting: int
    busy_seconds: float  # in steps
    round_seconds: float  # in rounds, which are the part of a step that is not reading prompts
    num_out_of_memory: int  # how often memory ran out
    draft_version: int = 0  # of the draft in use
    num_positions: int = 0  # of all slots, for a token each
    num_positions_used: int = 0  # by the sequences in the slots
    num_texts: int = 0  # that were written, or scored, to their ends
    num_tokens: int = 0  # that were written, also of texts that go on


class EngineLoop:
    """An engine whose sequences can be awaited. Belongs to the event loop that first awaits it."""

    def __init__(
        self, engine: TokenEngine, hang_timeout_s: float = HANG_TIMEOUT_S, num_reserved: int | None = None
    ) -> None:
        """Take over `engine`, which nothing else may step. A step longer than `hang_timeout_s` ends the process.

        Sequences in the background leave `num_reserved` slots free, a quarter unless given.
        """
        self.engine = engine
        self._backlog = Backlog(num_reserved)
        self._watchdog = Watchdog(hang_timeout_s)
        self._inbox: list[Sequence] = []
        self._unfinished: dict[Sequence, asyncio.Future[None]] = {}
        self._streams: list[DeltaStream] = []
        self._busy_seconds = 0.0
        self._num_out_of_memory = 0
        self._num_texts = self._num_tokens = 0  # that were finished
        self._pump: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine")

    async def finish(self, sequences: Seq[Sequence], *, in_background: bool = False) -> None:
        """Return when all these sequences have finished. If the engine itself fails, every waiting caller fails.

        They run longest first, by estimate, so that few are left running alone at the end. If the wait is cancelled,
        they are dropped: those that do not write yet are forgotten, the others end with their next token. Sequences
        `in_background` get slots that no others want.
        """
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in sequences]
        self._unfinished.update(zip(sequences, futures, strict=True))
        queue = self._backlog.add if in_background else self._inbox.extend
        queue(sorted(sequences, key=estimated_length, reverse=True))
        if self._pump is None or self._pump.done():
            self._pump = loop.create_task(self._run())
        try:
            await asyncio.gather(*futures)
        except asyncio.CancelledError:
            self._drop(sequences)
            raise

    async def stream(
        self, sequences: Seq[Sequence], send_every_s: float = 0.0, *, in_background: bool = False
    ) -> AsyncIterator[list[Delta]]:
        """Yield what the engine's steps add to any of these sequences, until all have finished.

        Deltas come in batches: at most one per `send_every_s`, and fewer when many streams are open or the caller is
        busy. An empty list says that the first of the sequences has a slot from the next step on. Closing the stream,
        or cancelling the wait for it, is as cancelling `finish`.
        """
        stream = DeltaStream(sequences, send_every_s)
        self._streams.append(stream)
        finishing = asyncio.ensure_future(self.finish(sequences, in_background=in_background))
        finishing.add_done_callback(lambda _: stream.is_new.set())
        try:
            while True:
                await stream.is_new.wait()
                stream.is_new.clear()
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

    async def score(self, texts: Seq[ScoredText]) -> None:
        """Return when each of these texts has its scores, or an error; as `finish` does for their rows."""
        await self.finish(self.engine.rows_of(texts))
        for text in texts:
            text.collect()
        self._num_texts += len(texts)

    def _drop(self, sequences: Seq[Sequence]) -> None:
        dropped = set(sequences)
        waiting = set(self._inbox) | self._backlog.drop(dropped)
        self._inbox = [sequence for sequence in self._inbox if sequence not in dropped]
        for sequence in dropped & waiting:
            del self._unfinished[sequence]
        self._thread.submit(self.engine.drop, dropped - waiting)  # between two steps, not in one

    def has_finished(self, sequences: Seq[Sequence]) -> bool:
        """Tell whether nothing of these sequences will change any more; any thread may ask."""
        return all(each.is_finished and each not in self._unfinished for each in sequences)

    def stats(self) -> EngineStats:
        """Return the statistics as they are now; any thread may ask."""
        engine = self.engine
        num_running = engine.num_running
        return EngineStats(
            num_slots=engine.options.slots,
            num_running=num_running,
            num_waiting=max(0, len(self._unfinished) - num_running),
            busy_seconds=self._busy_seconds,
            round_seconds=engine.round_seconds,
            num_out_of_memory=self._num_out_of_memory,
            draft_version=engine.draft_version,
            num_positions=engine.options.slots * engine.max_model_len,
            num_positions_used=sum(map(len, engine.in_flight)),
            num_texts=self._num_texts,
            num_tokens=self._num_tokens + sum(len(each.output_token_ids) for each in list(self._unfinished)),
        )

    def replace_draft(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Replace the draft's weights between two steps, and wait for it; any thread but the event loop's may ask.

        Raises what `Engine.replace_draft` raises.
        """
        self._thread.submit(self.engine.replace_draft, weights, version).result()

    def hear(self, learned: Learned | None) -> None:
        """Tell the engine, between two steps, what others have learned of drafters; it is not waited for."""
        if learned is not None:
            self._thread.submit(self.engine.hear, learned)

    def draft_was_replaced(self, version: int) -> None:
        """Tell the engine, between two steps, that the draft in another process has other weights."""
        self._thread.submit(self.engine.draft_was_replaced, version).result()

    async def _run(self) -> None:
        while await self._advance():
            pass

    async def _advance(self) -> bool:
        """Do one step, and what follows from it; return False if there was nothing to do, or the engine failed."""
        loop = asyncio.get_running_loop()
        if not self._inbox and not self._backlog.waiting and not self.engine.has_work:
            return False
        newcomers, self._inbox = self._inbox, []
        if self._backlog.waiting:
            num_others = len(self._unfinished) - len(self._backlog)
            newcomers += self._backlog.take(self.engine.options.slots, num_others)
        finished: list[Sequence] = []
        try:
            finished = await loop.run_in_executor(self._thread, self._step, newcomers, loop)
        except TargetLostError as error:
            end_process(Event("target lost", cause=str(error)))
        except Exception as error:  # noqa: BLE001 - handed to every waiting caller
            is_memory = is_out_of_memory(error)
            if is_memory:
                # The frames hold the failed step's tensors. Not in the thread: that would end this coroutine.
                clear_frames(error.__traceback__)
                self._num_out_of_memory += 1
            failure = await self._halve(error) if is_memory else error
            if failure is not None:
                await self._fail_all(DeviceFault(str(failure)) if is_device_fault(failure) else failure)
                return False
        for stream in self._streams:
            stream.look(len(self._streams) / _MAX_SENT_PER_S)
        self._backlog.remove(finished)
        for sequence in finished:
            if (future := self._unfinished.pop(sequence, None)) is None:
                continue  # its caller has heard of a failure, after which the engine could not be cleared
            self._num_texts += sequence.asked is None
            self._num_tokens += len(sequence.output_token_ids)
            if not future.done():
                future.set_result(None)
        return True

    async def _fail_all(self, error: Exception) -> None:
        """Fail every waiting caller, including those that come while the engine is cleared."""
        try:  # in its thread, behind what was dropped meanwhile
            await asyncio.get_running_loop().run_in_executor(self._thread, self.engine.clear)
        except Exception as failure:  # noqa: BLE001 - a device that failed does not clear, either; callers must hear
            _log.error(failure_event("engine not cleared", failure))
        for future in self._unfinished.values():
            if not future.done():
                future.set_exception(error)
        self._unfinished.clear()
        self._inbox.clear()
        self._backlog.clear()

    def _begin_streams(self, up_next: set[Sequence]) -> None:
        for stream in self._streams:
            stream.begin(up_next)

    def _step(self, newcomers: list[Sequence], loop: asyncio.AbstractEventLoop) -> list[Sequence]:
        started = time.monotonic()
        try:
            with self._watchdog:
                self.engine.submit(newcomers)
                # Before the step, which may be the process's last, and behind what was dropped.
                loop.call_soon_threadsafe(self._begin_streams, self.engine.up_next())
                return self.engine.step()
        finally:
            self._busy_seconds += time.monotonic() - started

    async def _halve(self, shortage: Exception) -> Exception | None:
        """Go on with half the slots; of a single slot, without its row. Return what callers get if that cannot be done.

        That is the shortage itself, unless the device fails meanwhile.
        """
        num_slots, num_running = self.engine.options.slots, self.engine.num_running
        if num_slots == 1 and not num_running:
            return shortage
        _log.warning(Event("out of memory", slots=num_slots, going_on_with=max(1, num_slots // 2), running=num_running))
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._resize, num_slots // 2)
        except Exception as error:  # noqa: BLE001 - callers get the first error; this one is logged
            _log.error(failure_event("engine not resized", error))
            return error if is_device_fault(error) else shortage
        return None

    def _resize(self, num_slots: int) -> None:
        alone = self.engine.in_flight if not num_slots else []
        self.engine.resize(max(1, num_slots))
        for row in alone:
            remedy = "lower sampling.max_tokens" if row.asked is None else "shorten the text"
            self.engine.drop([row], f"memory ran out although nothing else ran; {remedy}, or use more memory")


def estimated_length(sequence: Sequence) -> int:
    """Estimate the bits of a row's length, prompt and output: rows of about one length stay in their order.

    Neighbours in the input often begin alike, and a beginning is read once for rows that are in the engine together.
    """
    return (len(sequence.prompt_token_ids) + sequence.max_tokens).bit_length()
