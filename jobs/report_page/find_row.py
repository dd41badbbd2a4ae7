"""Rows of a run by the id that their user gave them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import pyarrow as pa

from pipeline.inputs.units import WorkUnit
from pipeline.run.directory import RunDirectory
from pipeline.run.unit_rows import read_ahead
from pipeline.storage.location import Location
from pipeline.storage.parquet import read_columns

_BITS_OF_ROW = 32
_MAX_EXAMPLES = 3


@dataclass(frozen=True)
class FoundRow:
    """A row's place: its unit and its row_id."""

    unit: WorkUnit
    row_id: int


def find_rows(run_directory: RunDirectory, wanted: str) -> list[FoundRow]:
    """Return the committed rows with this id of their own, or, if there are none, the one with this row_id.

    Only ids are read, of one part after the other. Raises ValueError, in one line, if there is no such row, and
    OSError.
    """
    committed, failed = run_directory.committed_unit_ids(), run_directory.failed_unit_ids()
    parts = map(run_directory.part_path, committed)
    errors = map(run_directory.errors_path, sorted(failed.intersection(committed)))
    found: dict[int, None] = {}
    examples: list[str] = []
    for table in read_ahead(_ids, chain(parts, errors)):
        for row_id, user_id in zip(table["row_id"].to_pylist(), table["id"].to_pylist(), strict=True):
            assert row_id is not None, "no file of a run has a row without one"
            if user_id is not None and str(user_id) == wanted:
                found[row_id] = None
            elif user_id is not None and len(examples) < _MAX_EXAMPLES and str(user_id) not in examples:
                examples.append(str(user_id))
    if not found and wanted.isascii() and wanted.isdigit():
        found[int(wanted)] = None
    of_unit: dict[int, list[int]] = {}
    for row_id in found:
        of_unit.setdefault(row_id >> _BITS_OF_ROW, []).append(row_id)
    rows = [
        FoundRow(unit, row_id)
        for unit in run_directory.units()
        for row_id in of_unit.get(unit.unit_id, ())
        if unit.row_index(row_id) < unit.num_rows
    ]
    if not rows:
        num_missing = run_directory.manifest.num_units - len(committed)
        raise ValueError(_why_not(run_directory, wanted, examples, num_missing))
    return rows


def _ids(location: Location) -> pa.Table:
    try:
        return read_columns(location, ["row_id", "id"])
    except FileNotFoundError:  # a retry has moved the last of a unit's error rows
        return pa.table({"row_id": pa.array([], pa.int64()), "id": pa.array([], pa.string())})


def _why_not(run_directory: RunDirectory, wanted: str, examples: list[str], num_missing: int) -> str:
    if examples:
        known = f"its ids are such as {', '.join(map(repr, examples))}; a row_id of data/ is taken as well"
    else:
        known = "its rows have no ids of their own (input.id_column), so give a row_id of data/"
    missing = f"; {num_missing} of its units are not committed yet, and it may be in one of them" if num_missing else ""
    return f"{run_directory.location.name}: no row {wanted!r}: {known}{missing}"
