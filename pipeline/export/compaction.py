"""A run as few large files, sorted by row_id and sample.

data/part-00000.parquet     the generations
errors/part-00000.parquet   the rows that failed, if they are asked for
_dray.json                  what was compacted and how; its "complete" is true once all files are written and checked

The units of a run are in the order of their rows, so they are read one after another and written as they come.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from typing import Any

import pyarrow as pa
from pyarrow import fs

from pipeline.counts import COUNTED_COLUMNS, Counts, count_generations
from pipeline.export.compacted_file import Cut, RowQueue, write_file
from pipeline.run.directory import RunDirectory
from pipeline.run.fingerprint import HASHED_COLUMNS, ContentHash
from pipeline.run.unit_rows import each_unit, refuse_incomplete
from pipeline.storage.location import Location, file_version
from pipeline.storage.parquet import open_checked
from pipeline.storage.whole_file import replacement, to_json

_NOTE = "_dray.json"
_FILE_NAME = re.compile(r"(_dray\.json|(data|errors)/part-\d{5,}\.parquet)(\.[0-9a-f]{32})?")  # also unfinished ones
_COMPARED = ("run", "state", "rows_per_file", "bytes_per_file", "include_errors", "partial")  # fields of the note
_CHECKED_COLUMNS = [*dict.fromkeys([*HASHED_COLUMNS, *COUNTED_COLUMNS])]


@dataclass(frozen=True)
class CompactedFile:
    """A file of a compaction."""

    name: str
    num_rows: int
    num_bytes: int


class AlreadyCompacted(Exception):
    """The destination holds this very compaction, complete: same run, same state of it, same options."""


@dataclass(frozen=True)
class Totals:
    """What a corpus holds, whichever files it is in."""

    counts: Counts
    content_hash: str


class Compaction:
    """A compaction of a run into an empty folder. Call `files`, then `finish`; a new one starts from the beginning."""

    def __init__(
        self,
        run_directory: RunDirectory,
        destination: Location,
        cut: Cut,
        *,
        include_errors: bool = False,
        is_partial: bool = False,
    ) -> None:
        """Delete what an interrupted compaction of the same run left in the destination, and mark it as begun.

        Raises IncompleteRunError if units are missing, unless it `is_partial`; AlreadyCompacted if nothing is left to
        do; ValueError, and nothing is touched, if the destination holds anything else; OSError.
        """
        if not is_partial:
            refuse_incomplete(run_directory)
        run_directory.refuse_inside(destination, "compact")
        self.run_directory, self.destination, self.include_errors = run_directory, destination, include_errors
        self._cut = cut
        self._counts, self._content = Counts(), ContentHash()  # of the rows that were read from the run
        self._note = {
            "source": run_directory.location.name,
            "run": run_directory.manifest.token,
            "identity": run_directory.run["identity"],
            "state": _state(run_directory, include_errors),
            "rows_per_file": cut.max_rows,
            "bytes_per_file": cut.num_bytes,
            "include_errors": include_errors,
            "partial": is_partial,
        }
        _clear(destination, self._note)
        self._write_note({"complete": False})

    def files(self) -> Iterator[CompactedFile]:
        """Write the files, and yield each when it is whole. Raises ValueError, naming a damaged part, and OSError."""
        yield from self._write("data", self.run_directory.generations_schema, RowQueue(self._generations()))
        if self.include_errors and not (errors := RowQueue(self._errors())).is_empty:
            yield from self._write("errors", self.run_directory.errors_schema, errors)

    def finish(self, files: Sequence[CompactedFile]) -> Totals:
        """Read the files back, mark the compaction as complete, and return what the run and the files both hold.

        Raises ValueError if they differ, the run changed meanwhile, or the destination has files besides; and OSError.
        """
        if _state(self.run_directory, self.include_errors) != self._note["state"]:
            raise ValueError(
                f"{self.run_directory.location.name} changed while it was compacted (is dray generate or dray retry at "
                f"work on it?); delete {self.destination.name}, and compact it when they are done"
            )
        if others := sorted(self.destination.files().keys() - {file.name for file in files} - {_NOTE}):
            raise ValueError(  # readers would read them, too
                f"{self.destination.name} also has {others[:5]}{' and more' if len(others) > 5 else ''}, which are not "
                "of this compaction (is another command at work there?); delete them and run the same command again"
            )
        wanted = Totals(self._counts, self._content.hexdigest())
        found = self._totals_of_files(files)
        if found != wanted:
            raise ValueError(
                f"{self.destination.name}: its files hold {found}, and the run holds {wanted}; the run is untouched, "
                "run the same command again"
            )
        self._write_note({"complete": True, **asdict(wanted), "files": [asdict(file) for file in files]})
        return wanted

    def _generations(self) -> Iterator[pa.Table]:
        """Yield the generations of each committed unit, in order, and count what was read."""
        committed = self.run_directory.committed_unit_ids()
        units = (unit for unit in self.run_directory.units() if unit.unit_id in committed)
        for rows in each_unit(self.run_directory, units):
            self._counts += count_generations(rows.generations, rows.errors.num_rows)
            self._content.add(rows.generations)
            yield rows.generations.replace_schema_metadata(None)

    def _errors(self) -> Iterator[pa.Table]:
        """Yield the error rows of each committed unit that has some, in order."""
        failed = self.run_directory.failed_unit_ids() & {*self.run_directory.committed_unit_ids()}
        units = (unit for unit in self.run_directory.units() if unit.unit_id in failed)
        for rows in each_unit(self.run_directory, units, ["row_id", "sample"]):
            yield rows.errors

    def _write(self, folder: str, schema: pa.Schema, rows: RowQueue) -> Iterator[CompactedFile]:
        """Write the rows; a run without any has one file without rows."""
        for number in count():
            location = self.destination.child(f"{folder}/part-{number:05d}.parquet")
            num_rows = write_file(location, schema, rows, self._cut)
            yield CompactedFile(f"{folder}/part-{number:05d}.parquet", num_rows, location.info().size)
            if rows.is_empty:
                return

    def _totals_of_files(self, files: Sequence[CompactedFile]) -> Totals:
        """Read the files back and return what they hold; failed rows that were left out count as in the run."""
        counts, content, num_errors = Counts(), ContentHash(), 0
        for file in files:
            location, has_errors = self.destination.child(file.name), file.name.startswith("errors/")
            try:
                with location.open_file() as stream:
                    parquet = open_checked(stream)
                    for group in range(parquet.num_row_groups):
                        table = parquet.read_row_group(group, None if has_errors else _CHECKED_COLUMNS)
                        if has_errors:
                            num_errors += table.num_rows
                        else:
                            counts += count_generations(table, 0)
                            content.add(table)
            except (OSError, pa.ArrowException) as error:
                raise OSError(f"{location.name} cannot be read back: {error}; run the same command again") from error
        num_errors = num_errors if self.include_errors else self._counts.num_errors
        return Totals(counts + Counts(num_rows=num_errors, num_errors=num_errors), content.hexdigest())

    def _write_note(self, outcome: Mapping[str, Any]) -> None:
        with replacement(self.destination.child(_NOTE)) as stream:
            stream.write(to_json({**self._note, **outcome}))


def _state(run_directory: RunDirectory, include_errors: bool) -> str:
    """Return a digest of which files the run has and how old they are: it changes when the run does."""
    folders = ["data", "errors"] if include_errors else ["data"]
    listed = [(folder, info) for folder in folders for info in run_directory.location.child(folder).list()]
    lines = sorted(
        f"{folder}/{info.base_name} {info.size} {file_version(info)}\n" for folder, info in listed if info.is_file
    )
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _clear(destination: Location, note: Mapping[str, Any]) -> None:
    """Delete what an interrupted compaction of this note's run left.

    Raises AlreadyCompacted if its complete compaction is there, and ValueError if anything else is.
    """
    if destination.info().type == fs.FileType.File:
        raise ValueError(f"{destination.name} is a file; the destination must be a folder")
    names = destination.files()
    foreign = sorted(name for name in names if not _FILE_NAME.fullmatch(name))
    if foreign or (_NOTE not in names and any(name.endswith(".parquet") for name in names)):
        raise ValueError(
            f"{destination.name} is not empty and is no compaction: it has {(foreign or sorted(names))[:5]}; "
            "use a new destination (nothing here was touched)"
        )
    if _NOTE in names:
        _refuse_another(destination, note, names)
    for name in sorted(names, key=lambda name: name == _NOTE):  # the note last: it says whose files these are
        destination.child(name).remove()


def _refuse_another(destination: Location, wanted: Mapping[str, Any], found: Mapping[str, fs.FileInfo]) -> None:
    """Raise AlreadyCompacted or ValueError, unless the files found are of an interrupted compaction of this run."""
    try:
        note = json.loads(destination.child(_NOTE).read_bytes())
        differing = [name for name in _COMPARED if note[name] != wanted[name]]
        source, is_complete = note["source"], note["complete"]
        files = {(file["name"], file["num_bytes"]) for file in note["files"]} if is_complete else set()
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{destination.name}: its {_NOTE} is not of this version, or damaged; use a new destination"
        ) from error
    if "run" in differing:
        raise ValueError(f"{destination.name} holds another run, {source}; use a new destination")
    if not is_complete:
        return
    sizes = {(name, info.size) for name, info in found.items()}
    changed = sorted({name for name, _ in files ^ sizes} - {_NOTE})
    if differing or changed:
        what = "its files are not as they were written: " + ", ".join(changed[:5])
        if differing:
            options = ", ".join(name for name in differing if name != "state")
            what = f"with other options ({options})" if options else "the run has changed since"
        raise ValueError(
            f"{destination.name} holds a complete compaction of this run already, but {what}; "
            "use a new destination, or delete this one to compact the run again"
        )
    raise AlreadyCompacted(
        f"{destination.name} holds this compaction already, complete in {len(files)} files; nothing was written"
    )
