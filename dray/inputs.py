"""Source: rows as they are given to a model, each read as a run reads it: texts, chats, dicts, tables and files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from itertools import chain, count, islice
from typing import Any, Protocol, TypeAlias, cast

import numpy as np
import pyarrow as pa

from pipeline.errors import ErrorRow, RowError, wrong_type
from pipeline.inputs.carried import carried_types, common_types, id_type, plain_type
from pipeline.inputs.files import list_files
from pipeline.inputs.options import InputOptions, resolve_options, settle_prompts
from pipeline.inputs.records import Columns, to_rows
from pipeline.inputs.rows import InputRow, RowPosition, read_row, read_unit, used_columns
from pipeline.inputs.units import WorkUnit, plan_units
from pipeline.inputs.values import plain_values
from pipeline.schema import TEXT
from pipeline.storage.location import Location

_NUM_SAMPLED_ROWS = 1000  # whose values tell the types of columns, as in JSON lines
_ROWS_PER_READ = 256


class ArrowStream(Protocol):
    """A table, or a column, of a library with the Arrow PyCapsule interface: pyarrow, pandas, polars, DuckDB."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return it as a capsule."""


Chat: TypeAlias = Sequence[Mapping[str, Any]]
Rows: TypeAlias = str | os.PathLike[str] | ArrowStream | Iterable[str | Chat | Mapping[str, Any]]


@dataclass(frozen=True)
class Source:
    """Rows in their order. Each is read when it is asked for, as an InputRow or as the error that is wrong with it."""

    rows: Iterator[InputRow | ErrorRow]
    carried: Mapping[str, pa.DataType]
    id_type: pa.DataType
    num_rows: int | None  # where it is known before

    @classmethod
    def of(cls, given: Rows, options: InputOptions, template_marks: tuple[str, ...] | None) -> Source:
        """Return the rows of what was given, for a model whose chat template has these marks, None if it has none.

        Raises ValueError for what cannot be read at all.
        """
        if isinstance(given, str | os.PathLike):
            return cls._of_files(os.fspath(given), options, template_marks)
        options, _ = settle_prompts(options, template_marks)
        if not hasattr(given, "__arrow_c_stream__") and hasattr(given, "__arrow_c_array__"):
            given = pa.chunked_array([pa.array(cast(Any, given))])
        if hasattr(given, "__arrow_c_stream__"):
            cells: Any = pa.chunked_array(cast(Any, given))
            if pa.types.is_struct(cells.type):
                return cls._of_table(pa.Table.from_struct_array(cells), options)
            given = plain_values(cells)  # a column of texts or chats
        if isinstance(given, Mapping) or not isinstance(given, Iterable):
            raise ValueError(f"rows are a list, a table or the path of a file, got {type(given).__name__}; see dray")
        return cls._of_items(given, options)

    @classmethod
    def _of_files(cls, path: str, options: InputOptions, template_marks: tuple[str, ...] | None) -> Source:
        try:
            files = list_files(path)
        except ValueError as error:
            raise ValueError(f"{error}. A single prompt is a list of one: [{path[:40]!r}]") from error
        options, _ = settle_prompts(resolve_options(files, options), template_marks)
        types = carried_types(files, options, ["parts"]), id_type(files, options)
        units = list(plan_units(files, options, _ROWS_PER_READ))

        def read(unit: WorkUnit) -> list[InputRow | ErrorRow]:
            return Location.parse(unit.file).retrying("reading", lambda: list(read_unit(unit, options, *types)))

        return cls(chain.from_iterable(map(read, units)), *types, sum(unit.num_rows for unit in units))

    @classmethod
    def _of_table(cls, table: pa.Table, options: InputOptions) -> Source:
        types = {field.name: plain_type(field.type) for field in table.schema}
        wanted = {*used_columns(options), *options.carried_of(types)}
        records = to_rows(table.select([name for name in types if name in wanted]))
        return cls._of_records(records, types, options, table.num_rows)

    @classmethod
    def _of_items(cls, items: Iterable[Any], options: InputOptions) -> Source:
        records = (_record(item, options) for item in items)
        head = list(islice(records, _NUM_SAMPLED_ROWS))
        good = [record for record in head if not isinstance(record, RowError)]
        if good and set(good[0]) == {"role", "content"}:
            raise ValueError("the rows are messages of one chat; a chat is one row, so put it into a list: [chat]")
        num_rows = len(items) if isinstance(items, Sized) else None
        return cls._of_records(chain(head, records), common_types(good), options, num_rows)

    @classmethod
    def _of_records(
        cls,
        records: Iterable[Columns | RowError],
        types: Mapping[str, pa.DataType],
        options: InputOptions,
        num_rows: int | None,
    ) -> Source:
        names = options.carried_of(types)
        needed = {*names, *([options.id_column] if options.id_column else [])}
        if options.messages_column not in types:
            needed |= set(options.template.columns if options.template else [options.prompt_column])
        if types and (missing := sorted(needed - set(types))):
            raise ValueError(
                f"the rows have no {', '.join(map(repr, missing))}; they have {', '.join(types)} "
                "(prompt_column, messages_column and id_column name other columns)"
            )
        carried, of_id = {name: types[name] for name in names if types}, types.get(options.id_column or "", TEXT)
        id_type = pa.int64() if pa.types.is_integer(of_id) and of_id != pa.uint64() else TEXT

        def read(number: int, record: Columns | RowError) -> InputRow | ErrorRow:
            position = RowPosition(number, "", number)
            try:
                return read_row(record, position, options, carried, id_type)
            except (TypeError, ValueError, OverflowError) as error:  # of an object that no file can hold
                return position.error(RowError("read", str(error), type(error).__name__), None)

        return cls(map(read, count(), records), carried, id_type, num_rows)


def _record(item: Any, options: InputOptions) -> Columns | RowError:
    item = _plain(item)
    if isinstance(item, str):
        return {options.prompt_column: item}
    if isinstance(item, list | tuple):
        return {options.messages_column: list(item)}
    if isinstance(item, Mapping):
        return {name: _plain(value) for name, value in item.items()}
    return wrong_type("read", "a row", "a text, a list of messages or a dict", item)


def _plain(value: Any) -> Any:
    """Return what Python has for a value of numpy or Arrow, such as the id of a row; all else as it is."""
    if isinstance(value, pa.Scalar):
        return value.as_py()
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value
