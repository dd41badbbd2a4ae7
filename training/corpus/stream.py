"""The stream of a corpus by Ray Data: read tasks, each of some pieces, in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa
import ray.data
from ray.data import DataContext
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask

from training.corpus.example import Example
from training.corpus.files import CorpusFile
from training.corpus.rows import RowReader

Piece = tuple[CorpusFile, int, int]  # a file, one of its row groups, and how many of its first rows

_ROWS_PER_BLOCK = 1024
_MAX_TASKS, _READ_AT_ONCE = 2000, 2
_TOKENS = pa.list_(pa.int32())
SCHEMA = pa.schema(
    [("prompt_token_ids", _TOKENS), ("output_token_ids", _TOKENS), ("kind", pa.string()), ("temperature", pa.float32())]
)


def streamed(reader: RowReader, pieces: Sequence[Piece], held_out: bool | None) -> ray.data.Dataset:
    """Return the examples of these pieces as a dataset that is read while it is consumed, in order.

    Ray's own `read_parquet` is not used: the files of a corpus differ in their columns and filesystems, a file may be
    taken in part, and a row's noise and order come from its place. Reading takes little and asks for no CPU: beside
    engines and trainers that hold all of a cluster's CPUs it would wait for them, and they for it.
    """
    dataset = ray.data.read_datasource(
        _Source(reader, pieces, held_out),
        num_cpus=0,
        concurrency=_READ_AT_ONCE,
        override_num_blocks=max(1, min(len(pieces), _MAX_TASKS)),
    )
    dataset.context.execution_options.preserve_order = True
    return dataset


class _Source(Datasource):  # type: ignore[misc]  # Ray has no types
    def __init__(self, reader: RowReader, pieces: Sequence[Piece], held_out: bool | None) -> None:
        super().__init__()
        self._reader, self._pieces, self._held_out = reader, pieces, held_out

    def estimate_inmemory_data_size(self) -> int:
        """Return bytes that are about those of the files: Parquet packs tokens, and this only sizes tasks."""
        return sum({file.name: file.size for file, _, _ in self._pieces}.values())

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: DataContext | None = None
    ) -> list[ReadTask]:
        """Return tasks that read neighbouring pieces each."""
        size = -(-len(self._pieces) // max(1, parallelism))
        metadata = BlockMetadata(num_rows=None, size_bytes=None, exec_stats=None, input_files=None)
        return [
            ReadTask(_Task(self._reader, self._pieces[start : start + size], self._held_out), metadata, schema=SCHEMA)
            for start in range(0, len(self._pieces), size)
        ]


class _Task:
    def __init__(self, reader: RowReader, pieces: Sequence[Piece], held_out: bool | None) -> None:
        self._reader, self._pieces, self._held_out = reader, pieces, held_out

    def __call__(self) -> Iterator[pa.Table]:
        examples = (
            example for piece in self._pieces for example in self._reader.examples(*piece, held_out=self._held_out)
        )
        is_empty = True
        while block := list(islice(examples, _ROWS_PER_BLOCK)):
            is_empty = False
            yield _table(block)
        if is_empty:  # a task without rows still has the columns
            yield SCHEMA.empty_table()


def _table(examples: Sequence[Example]) -> pa.Table:
    columns: tuple[list[Any], ...] = (
        [example.prompt_token_ids for example in examples],
        [example.output_token_ids for example in examples],
        [example.kind for example in examples],
        [example.params.temperature for example in examples],
    )
    arrays: list[pa.Array[Any]] = [pa.array(v, type=field.type) for v, field in zip(columns, SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)
