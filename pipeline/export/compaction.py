"""A run as few large files, sorted by row_id and sample.

_dray.json                  what was compacted and how; at the end also its counts, content hash and files
data/part-00000.parquet     the generations
errors/part-00000.parquet   the rows that failed, if they are asked for

Files are written one after another, each whole or not at all, and each says in its footer where in the run it begins
and ends. So a compaction that died goes on behind its last file; the cut depends on the run and the options alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, count
from typing import Any

import pyarrow as pa

from pipeline.counts import COUNTED_COLUMNS, Counts, count_generations
from pipeline.export.claim import claim_digest, refuse_others, take, write_note
from pipeline.export.compacted_file import Cut, Place, Stretch, write_file
from pipeline.inputs.carried import types_from_dict
from pipeline.inputs.units import WorkUnit
from pipeline.run.content_hash import HASHED_COLUMNS, ContentHash
from pipeline.run.directory import RunDirectory
from pipeline.run.row_order import last_whole_row
from pipeline.run.unit_rows import each_unit, refuse_incomplete
from pipeline.schema import ERRORS, generations_schema
from pipeline.storage.checked_parquet import open_checked
from pipeline.storage.location import Location, file_version

_CHECKED_COLUMNS = [*dict.fromkeys([*HASHED_COLUMNS, *COUNTED_COLUMNS])]


@dataclass(frozen=True)
class CompactedFile:
    """A file of a compaction. `was_there` says that an earlier command had written it."""

    name: str
    num_rows: int
    num_bytes: int
    was_there: bool


@dataclass(frozen=True)
class Totals:
    """What a corpus holds, whichever files it is in."""

    counts: Counts
    content_hash: str


@dataclass(frozen=True)
class Compaction:
    """A compaction that may begin, or go on. `claim` is what it is of, as `_dray.json` says."""

    run_directory: RunDirectory
    destination: Location
    cut: Cut
    include_errors: bool
    claim: dict[str, Any]

    @classmethod
    def begin(
        cls,
        run_directory: RunDirectory,
        destination: Location,
        cut: Cut,
        *,
        include_errors: bool = False,
        is_partial: bool = False,
    ) -> Compaction:
        """A compaction into `destination`: new, or one of the same run with the same options.

        Raises IncompleteRunError if units are missing, unless it `is_partial`; ValueError if the destination holds
        anything else, or the run has changed since; OSError.
        """
        if not is_partial:
            refuse_incomplete(run_directory)
        _refuse_inside(run_directory, destination)
        claim = {
            "source": run_directory.location.name,
            "run": run_directory.manifest.token,
            "identity": run_directory.run["identity"],
            "state": _state(run_directory, include_errors),
            "rows_per_file": cut.max_rows,
            "bytes_per_file": cut.num_bytes,
            "include_errors": include_errors,
            "partial": is_partial,
        }
        take(destination, claim)
        return cls(run_directory, destination, cut, include_errors, claim)

    def files(self) -> Iterator[CompactedFile]:
        """Every file as it is done: those that are there already, and those that are written now. Raises OSError."""
        digest = claim_digest(self.claim)
        for folder in ("data", "errors") if self.include_errors else ("data",):
            place = Place(0, 0)
            for number in count():
                name = f"{folder}/part-{number:05d}.parquet"
                location = self.destination.child(name)
                stretch = Stretch.of_file(location)
                was_there = stretch is not None and (stretch.compaction, stretch.start) == (digest, place)
                if not was_there:
                    stretch = self._write(folder, location, place, digest, is_needed=name == "data/part-00000.parquet")
                if stretch is None:
                    break
                yield CompactedFile(name, stretch.num_rows, location.info().size, was_there)
                place = stretch.end

    def finish(self, files: Sequence[CompactedFile]) -> Totals:
        """What the run and the files both hold, read back from both; `_dray.json` says so then.

        Raises ValueError if they differ, the run changed meanwhile, or the destination has files besides; and OSError.
        """
        if _state(self.run_directory, self.include_errors) != self.claim["state"]:
            raise ValueError(
                f"{self.run_directory.location.name} changed while it was compacted (jobs.generate or jobs.retry works "
                f"on it?); delete {self.destination.name}, and compact it when they are done"
            )
        names = {file.name for file in files}
        refuse_others(self.destination, names)  # before everything is read for nothing
        wanted = self._totals_of_run()
        found = self._totals_of_files(files, wanted.counts.num_errors)
        if found != wanted:
            raise ValueError(
                f"{self.destination.name}: its files hold {found}, and the run holds {wanted}; the run is untouched, "
                "delete the destination and compact it again"
            )
        refuse_others(self.destination, names)
        listed = [{key: value for key, value in asdict(file).items() if key != "was_there"} for file in files]
        result = {"counts": wanted.counts.to_dict(), "content_hash": wanted.content_hash, "files": listed}
        write_note(self.destination, {**self.claim, "complete": True, **result})
        return wanted

    def _write(self, folder: str, location: Location, start: Place, digest: str, *, is_needed: bool) -> Stretch | None:
        """What was written of the rows from `start` on; None if there are none, and no file `is_needed`."""
        pieces = self._pieces(folder, start)
        first = next(pieces, None)
        if first is None and not is_needed:
            return None
        carried = types_from_dict(self.run_directory.run["carried"])
        schema = generations_schema(carried) if folder == "data" else ERRORS
        return write_file(
            location, schema, chain([first] if first is not None else [], pieces), start, self.cut, digest
        )

    def _pieces(self, folder: str, start: Place) -> Iterator[tuple[Place, pa.Table]]:
        """The rows from `start` on, in pieces of about a row group at most, each with its place."""
        units = (unit for unit in self._units() if unit.unit_id >= start.unit_id)
        columns = None
        if folder == "errors":
            failed, columns = self.run_directory.failed_unit_ids(), ["row_id", "sample"]
            units = (unit for unit in units if unit.unit_id in failed)
        for rows in each_unit(self.run_directory, units, columns):
            table = (rows.generations if folder == "data" else rows.errors).replace_schema_metadata(None)
            first = start.row if rows.unit.unit_id == start.unit_id else 0
            most = max(1, table.num_rows * self.cut.row_group_bytes // max(1, table.nbytes))
            while first < table.num_rows:
                piece = table.slice(first)
                piece = piece.slice(0, last_whole_row(piece, most))
                yield Place(rows.unit.unit_id, first), piece
                first += piece.num_rows

    def _units(self) -> Iterator[WorkUnit]:
        """The committed units, in order."""
        committed = self.run_directory.committed_unit_ids()
        return (unit for unit in self.run_directory.units() if unit.unit_id in committed)

    def _totals_of_run(self) -> Totals:
        counts, content = Counts(), ContentHash()
        for rows in each_unit(self.run_directory, self._units(), _CHECKED_COLUMNS):
            counts += count_generations(rows.generations, rows.errors.num_rows)
            content.add(rows.generations)
        return Totals(counts, content.hexdigest())

    def _totals_of_files(self, files: Sequence[CompactedFile], num_errors: int) -> Totals:
        """`num_errors` are those of the run: what the files hold if the rows that failed are not among them."""
        counts, content = Counts(), ContentHash()
        for file in files:
            location = self.destination.child(file.name)
            try:
                if file.name.startswith("data/"):
                    for table in _read_back(location):
                        counts += count_generations(table, 0)
                        content.add(table)
                else:
                    counts += Counts(num_rows=file.num_rows, num_errors=file.num_rows)
            except (OSError, pa.ArrowException) as error:
                raise OSError(
                    f"{location.name} cannot be read back: {error}; "
                    "if it is damaged, delete it and run the same command"
                ) from error
        if not self.include_errors:
            counts += Counts(num_rows=num_errors, num_errors=num_errors)
        return Totals(counts, content.hexdigest())


def _read_back(location: Location) -> Iterator[pa.Table]:
    """The row groups of a file, one at a time."""
    with location.open_file() as stream:
        parquet = open_checked(stream)
        for group in range(parquet.num_row_groups):
            yield parquet.read_row_group(group, _CHECKED_COLUMNS)


def _state(run_directory: RunDirectory, include_errors: bool) -> str:
    """A digest of which files the run has and how old they are: it changes when the run does."""
    folders = ["data", "errors"] if include_errors else ["data"]
    files = [info for folder in folders for info in run_directory.location.child(folder).list() if info.is_file]
    root = run_directory.location.path.rstrip("/")
    lines = sorted(f"{info.path.removeprefix(root)} {info.size} {file_version(info)}\n" for info in files)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _refuse_inside(run_directory: RunDirectory, destination: Location) -> None:
    """Raise ValueError if the destination is in the run: the run stays as it is."""
    source = run_directory.location
    is_inside = f"{destination.path.rstrip('/')}/".startswith(f"{source.path.rstrip('/')}/")
    if is_inside and destination.is_local == source.is_local:
        raise ValueError(f"{destination.name} is inside the run; compact it to a folder of its own")
