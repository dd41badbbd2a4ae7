"""A run of the bundled pair, made in this process: the real plan, rows, engine and parts, without Ray."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from actors.engine.translation import EncodedRow, decode_row, encode_row
from actors.engines.dray import footer_facts, load_engine
from actors.settings import GeneratorSettings
from decoding.engine.engine import Engine
from jobs.config.loading import load
from jobs.config.run import RunConfig
from jobs.driver.plan import create_run, make_plan, worker_spec
from pipeline.errors import ErrorRow
from pipeline.inputs.rows import InputRow, read_unit
from pipeline.run.commit import Work, commit_part
from pipeline.run.directory import RunDirectory
from pipeline.schema import errors_table
from pipeline.text.codec import TextCodec
from tests.jobs.runs import arguments, write_jsonl

PAIR = ("examples/tiny_pair/target", "examples/tiny_pair/draft")


_engines: dict[str, Engine] = {}  # one for all runs: it is probed when it is loaded


def made_run(
    folder: Path, rows: list[Any], *flags: str, without: Sequence[int] = (), costs: tuple[float, ...] = ()
) -> RunDirectory:
    """Return a run over these rows, 8 to a unit, of which the units in `without` are not committed.

    `costs` are what the engine says of its rounds, as those of another machine might.
    """
    source = write_jsonl(folder / "in.jsonl", rows)
    command = arguments(source, folder / "out", PAIR, "--engine.draft_length=fixed", "--engine.num_slots=8", *flags)
    plan = make_plan(load(RunConfig, command, prog="test"))
    run_directory = create_run(plan)
    recorded = worker_spec(plan, run_directory).recorded_rows
    engine, codec = _engine(plan.settings), TextCodec.load(plan.settings.models.target)
    for unit in run_directory.units():
        if unit.unit_id in without:
            continue
        encoded: list[EncodedRow] = []
        failed: list[ErrorRow] = []
        for row in read_unit(unit, plan.input_options, plan.carried):
            if isinstance(row, InputRow):
                ordinal = unit.first_ordinal + unit.row_index(row.row_id)
                encoded.append(encode_row(row, ordinal, codec, plan.settings))
                for sequence in encoded[-1].sequences:
                    sequence.rounds = [] if ordinal in recorded else None
            else:
                failed.append(row)
        list(engine.stream(sequence for row in encoded for sequence in row.sequences))
        cells = [cell for row in encoded for cell in decode_row(row, codec)]
        table = pa.Table.from_pylist(cells, schema=run_directory.generations_schema)
        work = Work(1_800_000_000.0 + 3 * unit.unit_id, 2.5, 10**9, "one", costs)
        commit_part(run_directory, unit, table, errors_table(failed), 0, footer_facts(engine), work)
    return run_directory


def _engine(settings: GeneratorSettings) -> Engine:
    key = repr((settings.models, settings.engine))
    if key not in _engines:
        _engines[key] = load_engine(settings)
    return _engines[key]
