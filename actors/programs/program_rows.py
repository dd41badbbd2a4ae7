"""ProgramRows: the rows of a run that each run a program."""

import asyncio
import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from actors.engine.loop import EngineLoop
from actors.engine.row_options import RowOptions
from actors.engine.translation import row_params, token_columns
from actors.programs.conversation import RunningSample, turn_of
from actors.programs.program import Program, failure_of
from actors.programs.program_tasks import let_no_program_end, run_program
from actors.programs.tool_calls import ToolRecord, ToolResult, as_json, forget_results
from actors.settings import GeneratorSettings, ProgramSettings
from decoding.sampling_params import SamplingParams
from decoding.sequence import Sequence
from pipeline.errors import RowError, storable
from pipeline.inputs.rows import InputRow
from pipeline.run.directory import RunDirectory
from pipeline.run.row_sample import NO_ROWS, RowSample
from pipeline.text.codec import TextCodec


@dataclass
class ProgramRow:
    """A row and its samples, once it has run."""

    row: InputRow
    params: SamplingParams
    ordinal: int
    samples: list[RunningSample] = field(default_factory=list)


def params_of(row: InputRow, default: SamplingParams, codec: TextCodec) -> SamplingParams:
    """Return the parameters of a row. Raises RowError for those that are wrong, or that no program can have."""
    if (others := RowOptions.of(row).given()) or isinstance(row.prompt, list):
        name = next(iter(others), "prompt")
        raise RowError("params", f"body.{name}: the rows of this run are programs, which get texts; leave it out")
    return row_params(default, row.overrides, codec)


class ProgramRows:
    """Runs the program of each row. Rows advance together: their turns share the engine's slots."""

    def __init__(
        self,
        settings: ProgramSettings,
        generator_settings: GeneratorSettings,
        run_directory: RunDirectory,
        loop: EngineLoop,
        codec: TextCodec,
        recorded_rows: RowSample = NO_ROWS,
    ) -> None:
        """Load the program. Raises ValueError if it cannot be found, or is not the one that the run began with."""
        assert settings.function is not None, "without a program rows are generations"
        self._program, self._settings = Program.load(settings.function), settings
        begun_with = run_directory.run["identity"].get("program", {}).get("source", self._program.digest)
        if begun_with != self._program.digest:
            raise ValueError(
                f"program.function {settings.function!r}: {self._program.file} is not what it was when the run began; "
                "restore it, or use a new output directory"
            )
        self._generator_settings, self._run_directory = generator_settings, run_directory
        self._loop, self._codec, self._recorded_rows = loop, codec, recorded_rows

    def encode(self, row: InputRow, ordinal: int) -> ProgramRow:
        """Return the row ready to run. Raises RowError as `params_of` does."""
        return ProgramRow(row, params_of(row, self._generator_settings.sampling, self._codec), ordinal)

    async def finish(self, rows: list[ProgramRow]) -> None:
        """Run the programs of these rows to their ends. Raises what the engine fails with."""
        let_no_program_end(asyncio.get_running_loop())
        runs = [asyncio.ensure_future(self._run(row, sample)) for row in rows for sample in self._begun(row)]
        try:
            await asyncio.gather(*runs)
        finally:
            for run in runs:
                run.cancel()
            await asyncio.gather(*runs, return_exceptions=True)

    def decode(self, row: ProgramRow) -> list[dict[str, Any]]:
        """Return the row's generations, one for each sample. Raises RowError if its program failed."""
        for sample in row.samples:
            if sample.error is not None:
                raise sample.error
        return [self._generation(row, number, sample) for number, sample in enumerate(row.samples)]

    def committed(self, unit_id: int, row_ids: set[int]) -> None:
        """Forget what was recorded for these rows, which are in the unit's part now."""
        forget_results(self._run_directory, unit_id, row_ids)

    def _begun(self, row: ProgramRow) -> list[RunningSample]:
        row.samples = [
            RunningSample(
                loop=self._loop,
                codec=self._codec,
                params=row.params,
                record=ToolRecord(self._run_directory, row.row.row_id, sample),
                seed=self._generator_settings.seed,
                ordinal=row.ordinal,
                max_turns=self._settings.max_turns,
                records_rounds=row.ordinal in self._recorded_rows,
            )
            for sample in range(row.params.n)
        ]
        return row.samples

    async def _run(self, row: ProgramRow, sample: RunningSample) -> None:
        sample.error = await self._error_of(row, sample)
        if sample.fault is not None:
            raise sample.fault
        if sample.error is not None:
            return
        if sample.num_in_flight:
            sample.error = RowError("program", "the program ended while a generation went on; await all that it begins")
        elif sample.was_cut:
            said = "the program cancelled a generation, and how far others came by then depends on time; let each end"
            sample.error = RowError("program", said)
        elif not any(isinstance(event, tuple) for event in sample.conversation.events()):
            sample.error = RowError("program", "the program ended without a single generation")

    async def _error_of(self, row: ProgramRow, sample: RunningSample) -> RowError | None:
        """Run the program; return why it failed, if it did."""
        timeout_s = self._settings.timeout_s
        try:
            async with asyncio.timeout(timeout_s) as sample.limit:
                sample.returned = await run_program(self._program.run, sample.conversation, _columns(row.row))
        except RowError as error:
            return error
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():  # the row is given up
                raise
            return failure_of(self._program, error)
        except BaseException as error:  # noqa: BLE001 - a program may raise anything
            if isinstance(error, TimeoutError) and sample.limit is not None and sample.limit.expired():
                return RowError(
                    "program", f"the program took more than program.timeout_s, {timeout_s:g} s", "TimeoutError"
                )
            return failure_of(self._program, error)
        return None

    def _generation(self, row: ProgramRow, number: int, sample: RunningSample) -> dict[str, Any]:
        events = list(sample.conversation.events())
        begun = [event for event in events if isinstance(event, tuple)]
        turns, returned = [turn_of(sequence, prompt, self._codec) for sequence, prompt in begun], sample.returned
        text, result = turns[-1].text, None
        if isinstance(returned, str):
            text = returned
        elif returned is not None:
            result = json.dumps(as_json("value that the program returned", returned))
        return {
            "row_id": row.row.row_id,
            "sample": number,
            "id": row.row.user_id,
            "prompt": turns[0].prompt,
            "is_chat": row.row.messages is not None,
            "text": storable(text),
            "stop_reason": None,
            **_sums([sequence for sequence, _ in begun]),
            "num_turns": len(turns),
            "turns": [
                {
                    "prompt": turn.prompt,
                    "text": turn.text,
                    "finish_reason": turn.finish_reason,
                    "num_output_tokens": len(turn.token_ids),
                }
                for turn in turns
            ],
            "tool_results": [vars(event) for event in events if isinstance(event, ToolResult)],
            "result": result,
            **row.row.carried,
        }


def _columns(row: InputRow) -> dict[str, Any]:
    """Return the row as its program gets it: its columns, and the prompt or messages that were read from it.

    They are copies, since a program may change what it gets.
    """
    read = {name: value for name, value in (("prompt", row.prompt), ("messages", row.messages)) if value is not None}
    return deepcopy({**row.columns, **read})


def _sums(sequences: list[Sequence]) -> dict[str, Any]:
    """Return the columns of tokens and counts: those of all turns, one behind the other or added up."""
    each = [token_columns(sequence) for sequence in sequences]
    of: Callable[[str], list[Any]] = lambda name: [columns[name] for columns in each]  # noqa: E731
    totals = {name: sum(of(name)) for name in each[0] if name.startswith("num_")}
    joined = {
        name: None if of(name)[0] is None else [entry for entries in of(name) for entry in entries]
        for name in ("token_ids", "logprobs", "top_logprobs", "draft_rounds")
    }
    return {
        **totals,
        **joined,
        "finish_reason": each[-1]["finish_reason"],
        "accepted_per_position": [sum(counts) for counts in zip_longest(*of("accepted_per_position"), fillvalue=0)],
        "draft_version": max(of("draft_version")),
    }
