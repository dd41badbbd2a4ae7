"""RunningSample: what the conversations of one sample of a row share: the engine, the limits, and what went wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from actors.engine.loop import EngineLoop
from actors.programs.program_tasks import outside_program
from actors.programs.tool_record import ToolRecord
from decoding.sampling_params import SamplingParams
from pipeline.errors import RowError
from pipeline.text.codec import TextCodec


@dataclass(kw_only=True)
class RunningSample:
    """One sample of a row, whose program runs."""

    loop: EngineLoop
    codec: TextCodec
    params: SamplingParams  # of the row
    record: ToolRecord
    seed: int
    ordinal: int  # of the row in the whole input
    max_turns: int
    records_rounds: bool = False
    fault: Exception | None = None  # of the engine or the storage: not the program's
    was_cut: bool = False  # whether a generation was cancelled
    limit: asyncio.Timeout | None = None  # the time that is left for the program
    num_in_flight: int = 0  # generations
    _num_turns: int = 0
    _seconds_left: float = field(default=0.0, init=False)

    @property
    def sample(self) -> int:
        """Number of the sample, 0 to n - 1."""
        return self.record.sample

    @property
    def params_of_noise(self) -> SamplingParams:
        """What decides the noise besides the place of a turn."""
        return SamplingParams(seed=self.params.seed)

    def count_turn(self) -> None:
        """Count a generation. Raises RowError beyond the most that are allowed."""
        if self._num_turns >= self.max_turns:
            raise RowError(
                "program", f"the program asked for more than {self.max_turns} generations, program.max_turns"
            )
        self._num_turns += 1

    @contextmanager
    def engine_at_work(self) -> Iterator[None]:
        """Stop the program's clock while the engine works, and remember what it fails with."""
        self._stop_clock()
        self.num_in_flight += 1
        try:
            with outside_program():
                yield
        except asyncio.CancelledError:
            self.was_cut = True
            raise
        except Exception as error:
            self.fault = error
            raise
        finally:
            self.num_in_flight -= 1
            self._go_on()

    @contextmanager
    def storage_at_work(self) -> Iterator[None]:
        """Remember what the storage fails with."""
        try:
            yield
        except OSError as error:
            self.fault = error
            raise

    def _stop_clock(self) -> None:
        if self.limit is not None and not self.num_in_flight and (ends := self.limit.when()) is not None:
            self._seconds_left = ends - asyncio.get_running_loop().time()
            self.limit.reschedule(None)

    def _go_on(self) -> None:
        if self.limit is not None and not self.num_in_flight:
            with suppress(RuntimeError):  # the program has ended
                self.limit.reschedule(asyncio.get_running_loop().time() + self._seconds_left)
