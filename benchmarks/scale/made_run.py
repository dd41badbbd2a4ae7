"""Runs with many parts, as `dray generate` would have left them: planned by it, with parts of sound made-up rows."""

import time
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context
from pathlib import Path

import pyarrow as pa

from benchmarks.scale.runs import write_prompts
from pipeline.counts import count_generations
from pipeline.errors import ErrorRow
from pipeline.inputs.units import WorkUnit
from pipeline.run.commit import Receipt, Work, part_content
from pipeline.run.directory import RunDirectory
from pipeline.schema import errors_table, generations_table
from pipeline.storage.parquet import to_parquet

PAIR = Path(__file__).parents[2] / "examples/tiny_pair"
_UNITS_AT_ONCE = 1000
_UNITS_PER_ERROR = 500  # one unit of these has a row that failed
_NUM_ROUNDS, _ACCEPTED = 20, [18, 13, 8, 1]  # of a row, and so 60 tokens


def arguments_of(folder: Path, run: str, rows_per_unit: int) -> list[str]:
    """Return the arguments of `dray generate` for a run over the prompts in a folder."""
    given = {"input.path": str(folder / "prompts.jsonl"), "output.path": run, "run.rows_per_unit": str(rows_per_unit)}
    given |= {"models.target": str(PAIR / "target"), "models.draft": str(PAIR / "draft"), "run.progress": "none"}
    given |= {"models.device": "cpu"}  # else a cluster that is there is asked
    return [text for name, value in given.items() for text in (f"--{name}", value)]


def make_run(folder: Path, num_units: int, rows_per_unit: int) -> RunDirectory:
    """Plan a run over new prompts into `folder`/run, and write all of its parts, on two processes."""
    from jobs.config.loading import load
    from jobs.config.run import GenerateConfig
    from jobs.driver.plan import create_run, make_plan

    write_prompts(folder / "prompts.jsonl", num_units * rows_per_unit)
    config = load(GenerateConfig, arguments_of(folder, str(folder / "run"), rows_per_unit), "")
    run = create_run(make_plan(config))
    units = run.units()
    with ProcessPoolExecutor(2, get_context("spawn")) as processes:
        todo = [
            processes.submit(write_parts, run, window)
            for window in iter(lambda: list(islice(units, _UNITS_AT_ONCE)), [])
        ]
        for each in todo:
            each.result()
    return run


def write_parts(run: RunDirectory, units: list[WorkUnit]) -> None:
    """Write the parts of these units, and their error rows, without waiting for the disk; all have the same texts."""
    rows = [_generation(row) for row in range(max(unit.num_rows for unit in units))]
    like = generations_table(rows, run.generations_schema)
    for unit in units:
        num_failed = int(unit.unit_id % _UNITS_PER_ERROR == 1)
        row_ids = [unit.row_id(row) for row in range(unit.num_rows - num_failed)]
        table = like.slice(0, len(row_ids)).set_column(0, like.schema.field("row_id"), pa.array(row_ids))
        if num_failed:
            failed = ErrorRow(
                row_id=unit.row_id(unit.num_rows - 1),
                id=None,
                file=unit.file,
                row_number=unit.row_start + unit.num_rows - 1,
                stage="generate",
                error_type="ValueError",
                message="made up",
                attempt=0,
            )
            Path(run.errors_path(unit.unit_id).path).write_bytes(to_parquet(errors_table([failed], run.id_type)))
        receipt = Receipt(unit.unit_id, count_generations(table, num_failed), 0)
        work = Work(time.time(), 1.0, 1 << 30, f"{unit.unit_id % 64:032x}", (0.02, 0.021, 0.022))
        Path(run.part_path(unit.unit_id).path).write_bytes(part_content(table, receipt, {"backend": "dray"}, work))


def _generation(row: int) -> dict[str, object]:
    """Return a row that accepts two of four drafted tokens a round."""
    num_accepted = sum(_ACCEPTED)
    num_tokens = num_accepted + _NUM_ROUNDS
    return {
        "row_id": row,
        "sample": 0,
        "prompt": f"Say something about the number {row}.",
        "is_chat": False,
        "text": f"{row} is a number, and this is what there is to say of it. " * 4,
        "token_ids": [(row + place) % 2000 for place in range(num_tokens)],
        "finish_reason": "length",
        "num_prompt_tokens": 9,
        "num_cached_tokens": 0,
        "draft_version": 0,
        "num_output_tokens": num_tokens,
        "num_rounds": _NUM_ROUNDS,
        "num_draft_tokens": 4 * _NUM_ROUNDS,
        "num_accepted_tokens": num_accepted,
        "accepted_per_position": _ACCEPTED,
    }
