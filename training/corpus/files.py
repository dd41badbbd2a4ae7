"""The files of a corpus, a fixed list: the parts of runs that are committed now, what these say, and other Parquet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from actors.engine.vocabulary import with_bad_word_ids
from decoding.checkpoint.supported import max_positions, read_config
from decoding.engine.options import settle_max_model_len
from decoding.sampling_params import SamplingParams
from pipeline.inputs.files import InputFile, list_files
from pipeline.inputs.units import WorkUnit
from pipeline.run.commit import receipt_of
from pipeline.run.directory import RunDirectory
from pipeline.run.reading import read_ahead
from pipeline.storage.location import Location
from pipeline.text.codec import TextCodec
from training.corpus.options import CorpusOptions


@dataclass(frozen=True)
class RunFacts:
    """What decides the tokens of a run's rows."""

    path: str
    digest: str  # of what decides the tokens
    seed: int
    params: SamplingParams
    dtype: str
    is_coupled: bool  # whether the rows are a function of their noise keys
    max_model_len: int

    @classmethod
    def of(cls, run_directory: RunDirectory, target: str, expected: Mapping[str, str], codec: TextCodec) -> RunFacts:
        """Read them from run.json; `expected` are the fingerprints of target and tokenizer.

        Raises ValueError if the run is one of another target, tokenizer or template.

        A template that the run was given in place of the tokenizer's own is in the text of its prompts.
        """
        path, identity = run_directory.location.name, run_directory.run["identity"]
        _refuse_others(path, run_directory.run, expected)
        if run_directory.has("scores"):
            raise ValueError(f"{path} is a run of task 'score', which wrote no text; name runs that wrote theirs")
        if identity["sampling"].get("structured") is not None:
            raise ValueError(
                f"{path} is a run with sampling.structured, whose texts are those of the target under a grammar, and a "
                "draft is judged and trained without one; name runs without it"
            )
        positions = max_positions(read_config(target))
        return cls(
            path=path,
            digest=run_directory.identity_digest,
            seed=identity["seed"],
            params=with_bad_word_ids(SamplingParams(**identity["sampling"]), codec),
            dtype=identity["dtype"],
            is_coupled=identity["verification"] == "coupled",
            max_model_len=settle_max_model_len(identity["max_model_len"], positions),
        )


def _refuse_others(path: str, run: dict[str, Any], expected: Mapping[str, str]) -> None:
    """Raise ValueError if the run's texts are not those of the expected target, tokenizer and chat template."""
    identity = run["identity"]
    models = run.get("models", {})
    if identity["target"] != expected["target"]:
        raise ValueError(
            f"{path} is a run of another target, {models.get('target', 'which it does not name')}: its fingerprint is "
            f"{identity['target'][:12]}, and that of models.target {expected['target'][:12]}; a draft learns from the "
            "texts of its own target alone"
        )
    if identity["tokenizer"] != expected["tokenizer"]:
        named = models.get("tokenizer") or models.get("target", "which it does not name")
        raise ValueError(
            f"{path} is a run with another tokenizer or chat template, {named}: its fingerprint is "
            f"{identity['tokenizer'][:12]}, and that of the tokenizer here {expected['tokenizer'][:12]}; set "
            "models.tokenizer to the run's"
        )


_AT_ONCE = 16  # footers that are read at once, as stores answer late


@dataclass(frozen=True)
class CorpusFile:
    """A Parquet file as it was when the corpus was opened, and what its run says, if it is a part of one."""

    name: str  # absolute path or URI
    size: int
    version: str
    group_rows: tuple[int, ...]  # rows of each row group
    num_rows: int  # that are taken, the first ones
    columns: tuple[str, ...]
    run: RunFacts | None = None
    first_ordinal: int = 0  # of the unit's rows among all rows of the run's input
    num_output_tokens: int | None = None  # of the rows that are taken, where a receipt says it

    def row_groups(self) -> Iterator[tuple[int, int]]:
        """Yield (row group, rows of it that are taken) for those of which any are."""
        left = self.num_rows
        for group, num_rows in enumerate(self.group_rows):
            if left > 0:
                yield group, min(num_rows, left)
            left -= num_rows


def parts_of_run(run_directory: RunDirectory, facts: RunFacts) -> Iterator[CorpusFile]:
    """Yield the parts of a run that are committed now, in the order of its input; ValueError says which is damaged."""
    committed = run_directory.committed_unit_ids()
    units = (unit for unit in run_directory.units() if unit.unit_id in committed)

    def read(unit: WorkUnit) -> CorpusFile:
        part = run_directory.part_path(unit.unit_id)
        file, schema = _read_footer(part)
        try:
            counts = receipt_of(schema).counts
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{part.name}: not a part of a run, or damaged: {error}") from error
        return replace(
            file, run=facts, first_ordinal=unit.first_ordinal, num_output_tokens=counts.num_output_tokens, version=""
        )

    return read_ahead(read, units, _AT_ONCE)


def plain_files(path: str, options: CorpusOptions) -> Iterator[CorpusFile]:
    """Yield the Parquet files at a path that is no run. Raises ValueError for a file without the needed columns."""
    found = [file for file in list_files(path) if _is_parquet(file)]
    if not found:
        raise ValueError(f"corpus.path {path!r} is no run directory and names no Parquet file (*.parquet, *.pq)")

    def read(listed: InputFile) -> CorpusFile:
        file, _ = _read_footer(Location.parse(listed.path))
        has_tokens = "token_ids" in file.columns
        wanted = [options.prompt_column, *([] if has_tokens else [options.output_column])]
        refuse_missing(listed.path, wanted, file.columns, options)
        return replace(file, version=listed.version)

    return read_ahead(read, found, _AT_ONCE)


def refuse_missing(name: str, wanted: Sequence[str], columns: Sequence[str], options: CorpusOptions) -> None:
    """Raise ValueError if a file lacks a column that is wanted, or the column of the kinds."""
    kind = [] if options.kind_column is None else [options.kind_column]
    if missing := [column for column in (*wanted, *kind) if column not in columns]:
        raise ValueError(
            f"{name} has no column {', '.join(map(repr, missing))}; it has {', '.join(columns)}: set "
            "corpus.prompt_column, corpus.output_column and corpus.kind_column to what is there"
        )


def _read_footer(location: Location) -> tuple[CorpusFile, pa.Schema]:
    def read() -> tuple[CorpusFile, pa.Schema]:
        with location.open_file() as stream:
            parquet = pq.ParquetFile(stream)
            metadata, schema = parquet.metadata, parquet.schema_arrow
            size = stream.size()
        groups = tuple(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups))
        return CorpusFile(location.name, size, "", groups, metadata.num_rows, tuple(schema.names)), schema

    try:
        return location.retrying("reading", read)
    except pa.ArrowException as error:
        raise ValueError(f"{location.name}: damaged, or no Parquet file: {error}") from error


def _is_parquet(file: InputFile) -> bool:
    name = file.path.partition("?")[0] if "://" in file.path else file.path
    return name.lower().endswith((".parquet", ".pq"))
