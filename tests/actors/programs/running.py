"""Rows that run a program, in the process of the test."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from actors.engines.loading import LoadedEngine
from actors.programs.program_rows import ProgramRow, ProgramRows
from actors.settings import ProgramSettings
from pipeline.inputs.rows import InputRow
from pipeline.run.directory import RunDirectory
from tests.endpoint.in_process import settings_of
from tests.pipeline.made_up import input_row

SOME = "tests.actors.programs.some_programs"
ROWS = [input_row(prompt=text, overrides={"max_tokens": 12}) for text in ("hello world", "one two", "a text")]
Written = list[dict[str, Any]]


async def finished(rows: Any, encoded: list[Any]) -> list[Any]:
    """Run rows to their ends, and return them."""
    await rows.finish(encoded)
    return encoded


def run_in_a_loop(
    work: Coroutine[Any, Any, Any], new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
) -> Any:
    """Return what a coroutine returns. The test fails if something else ends the event loop."""
    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            return runner.run(work)
    except (SystemExit, KeyboardInterrupt) as error:
        pytest.fail(f"{type(error).__name__} has ended the event loop")


def write(
    function: str,
    run_directory: RunDirectory,
    engine: LoadedEngine,
    text_pair: tuple[str, str],
    rows: Sequence[InputRow] = ROWS,
    new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
    **options: Any,
) -> tuple[ProgramRows, list[ProgramRow]]:
    """Run a program over rows."""
    programs = ProgramRows(
        ProgramSettings(function=function, **options), settings_of(text_pair), run_directory, engine.loop, engine.codec
    )
    encoded = [programs.encode(row, ordinal) for ordinal, row in enumerate(rows)]
    return programs, run_in_a_loop(finished(programs, encoded), new_loop)


def decoded(rows: ProgramRows, encoded: list[ProgramRow]) -> list[Written]:
    """The generation rows, without what the pace of the engine decides."""
    paced = ("num_rounds", "num_draft_tokens", "num_accepted_tokens", "accepted_per_position", "num_cached_tokens")
    made = [rows.decode(row) for row in encoded]
    return [[{name: value for name, value in each.items() if name not in paced} for each in row] for row in made]
