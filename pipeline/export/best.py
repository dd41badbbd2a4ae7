"""The best row of each group of a run's output: best of n, where the candidates of a prompt are rows of their own."""

import math
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.inputs.values import shown_values
from pipeline.run.directory import RunDirectory
from pipeline.run.unit_rows import each_unit, pick_rows, refuse_incomplete, refuse_unknown_columns
from pipeline.storage.location import Location
from pipeline.storage.whole_file import replacement


@dataclass(frozen=True)
class Picked:
    """What was picked: rows of the file, rows that were compared, and rows without a value, which are never best."""

    num_rows: int
    num_compared: int
    num_without_value: int


def pick_best(run_directory: RunDirectory, path: str, by: str, group: str, *, lowest: bool = False) -> Picked:
    """Write the row with the highest value in column `by` of each group to a Parquet file, in the order of the input.

    Of equal rows it is the first; a row whose value is null or NaN is never the best. The run is read twice, one unit
    at a time, and only a number for each group is held. Raises ValueError for a column that is not there or holds no
    numbers, IncompleteRunError if units are missing, and OSError. The file appears whole or not at all.
    """
    schema = run_directory.generations_schema
    refuse_unknown_columns(run_directory, (by, group))
    kind = schema.field(by).type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise ValueError(f"column {by!r} holds {kind}, of which none is the best; name a column of numbers")
    refuse_incomplete(run_directory)
    best, num_compared, num_without = _best_places(run_directory, by, group, lowest=lowest)
    with replacement(Location.parse(path)) as stream, pq.ParquetWriter(stream, schema, compression="zstd") as writer:
        for rows in each_unit(run_directory, run_directory.units()):
            keys = zip(rows.generations["row_id"].to_pylist(), rows.generations["sample"].to_pylist(), strict=True)
            table = pick_rows(rows.generations, [index for index, key in enumerate(keys) if key in best])
            writer.write_table(table.replace_schema_metadata(None).cast(schema))
    return Picked(len(best), num_compared, num_without)


def _best_places(
    run_directory: RunDirectory, by: str, group: str, *, lowest: bool
) -> tuple[set[tuple[int, int]], int, int]:
    """Return (row_id, sample) of the best row of each group, how many rows have a value, and how many have none."""
    found: dict[str, tuple[float, tuple[int, int]]] = {}
    num_compared = num_without = 0
    names = list(dict.fromkeys(["row_id", "sample", by, group]))
    for rows in each_unit(run_directory, run_directory.units(), names):
        columns = (rows.generations[name].to_pylist() for name in ("row_id", "sample", by))
        for row_id, sample, value, key in zip(*columns, shown_values(rows.generations[group]), strict=True):
            if value is None or math.isnan(value):
                num_without += 1
                continue
            num_compared += 1
            signed = -value if lowest else value
            if key not in found or signed > found[key][0]:
                found[key] = signed, (row_id, sample)
    return {place for _, place in found.values()}, num_compared, num_without
