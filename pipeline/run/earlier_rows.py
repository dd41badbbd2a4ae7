"""The rows of an earlier run, as another run finds them: by their own ids, or else by the place in their file."""

import logging
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import pyarrow as pa

from pipeline.inputs.rows import InputRow
from pipeline.inputs.units import WorkUnit
from pipeline.logs import failure_event
from pipeline.run.directory import RunDirectory
from pipeline.run.reading import read_ahead
from pipeline.storage.location import Location
from pipeline.storage.parquet import read_columns

_log = logging.getLogger(__name__)
_NUM_KEPT = 8  # units whose rows are in memory: rows that are asked for stand near each other


class EarlierText(NamedTuple):
    """A sample as an earlier run has it, and the number of the attempt, from 0, that it is (`run.validate`)."""

    token_ids: Sequence[int]
    attempt: int = 0


class EarlierRows:
    """The rows of a run, found by id where they have ids, and by the name of their file and their number there else.

    Rows that share an id are found by their places. The rows of a few units are in memory, and all ids from when a row
    is first asked for that does not stand where it stood.
    """

    def __init__(
        self, run: RunDirectory, columns: Sequence[str], lacks: Callable[[Location, Exception], None] | None = None
    ) -> None:
        """Read the manifest, and these columns when rows are found. Raises ValueError for damage, and OSError.

        Of a part that is damaged, or cannot be read, `lacks` is told, and its rows are not found; without it, methods
        raise as this one does.
        """
        self._run, self._lacks = run, lacks
        self._columns = list(dict.fromkeys(["row_id", "sample", "id", *columns]))
        self._units = defaultdict[str, list[WorkUnit]](list)  # by path
        for unit in run.units():
            self._units[unit.file].append(unit)
        self._paths = defaultdict[str, list[str]](list)  # by name
        for path in self._units:
            self._paths[Location.parse(path).short_name].append(path)
        self._rows = lru_cache(_NUM_KEPT)(self._read)

    def find(self, user_id: str | int | None, file: str, row_number: int) -> int | None:
        """Return the row_id of the row with this id, or at this place of a file of this name; None if there is none."""
        there = self._at(file, row_number)
        if user_id is None or [row["id"] for row in self.samples(there)[:1]] == [user_id]:
            return there
        name, by_id = str(user_id), self._by_id
        has_many = name in by_id and by_id[name] is None
        return by_id.get(name) if by_id and not has_many else there

    def samples(self, row_id: int | None) -> list[dict[str, Any]]:
        """Return the generations of a row, in order; none of one that failed, is not committed, or was not found."""
        return [] if row_id is None else self._rows(row_id >> 32).get(row_id, [])

    def _at(self, file: str, row_number: int) -> int | None:
        paths = [file] if file in self._units else self._paths.get(Location.parse(file).short_name, [])
        units = self._units[paths[0]] if len(paths) == 1 else []
        index = bisect_right(units, row_number, key=lambda unit: unit.row_start) - 1
        if index < 0 or row_number - units[index].row_start >= units[index].num_rows:
            return None
        return units[index].row_id(row_number - units[index].row_start)

    @cached_property
    def _by_id(self) -> dict[str, int | None]:
        """The row with each id; None for an id of several rows."""
        by_id: dict[str, int | None] = {}
        for user_id, row_id in self._ids():
            by_id[user_id] = row_id if by_id.get(user_id, row_id) == row_id else None
        return by_id

    def _ids(self) -> Iterator[tuple[str, int]]:
        parts = map(self._run.part_path, sorted(self._run.committed_unit_ids()))
        for table in read_ahead(lambda part: self._table(part, ["row_id", "id"]), parts):
            if table is None:
                continue
            pairs = zip(table["id"].to_pylist(), table["row_id"].to_pylist(), strict=True)
            for user_id, row_id in pairs:
                if user_id is not None and row_id is not None:
                    yield str(user_id), row_id

    def _read(self, unit_id: int) -> dict[int, list[dict[str, Any]]]:
        rows = defaultdict[int, list[dict[str, Any]]](list)
        table = self._table(self._run.part_path(unit_id), self._columns)
        found = [] if table is None else table.to_pylist()
        for row in sorted(found, key=lambda row: (row["row_id"], row["sample"])):
            rows[row["row_id"]].append(row)
        return rows

    def _table(self, part: Location, columns: Sequence[str]) -> pa.Table | None:
        try:
            return read_columns(part, columns)
        except FileNotFoundError:  # it is not committed, or was moved away as damaged
            return None
        except (ValueError, OSError) as error:
            if self._lacks is None:
                raise
            self._lacks(part, error)
            return None


def earlier_texts(path: str, run: RunDirectory) -> Callable[[InputRow], list[EarlierText]]:
    """Return what finds the texts of a row of `run` in the run at `path`: the token ids of each of its samples.

    What cannot be read there is left out, with a warning: no row of `run` fails over it.
    """

    def lacks(part: Location, error: Exception) -> None:
        _log.warning(failure_event("earlier texts not read", error, part=part.name))

    old = RunDirectory.open(path)
    earlier = EarlierRows(old, ["token_ids", *["num_tries"] * old.has("tries")], lacks)
    files = {unit.unit_id: unit.file for unit in run.units()}

    def texts(row: InputRow) -> list[EarlierText]:
        row_id = earlier.find(row.user_id, files[row.row_id >> 32], row.row_number)
        return texts_of(earlier.samples(row_id))

    return texts


def texts_of(samples: Sequence[Mapping[str, Any]]) -> list[EarlierText]:
    """Return the texts of the samples of a row, given as rows of data/."""
    return [EarlierText(sample["token_ids"] or (), (sample.get("num_tries") or 1) - 1) for sample in samples]


def refuse_unlike(path: str, output: str, tokenizer: str) -> None:
    """Raise ValueError unless the run at `path` has texts that can be predictions of the run in `output`."""
    earlier, why = RunDirectory.open(path), ""
    if earlier.location.path == Location.parse(output).path:
        why = "it is the run itself; name another one, or leave it out to go on with this one"
    elif earlier.has("scores") or earlier.has("turns"):
        why = "its rows are scores or programs; name a run whose rows are texts"
    elif earlier.run["identity"].get("tokenizer") != tokenizer:
        why = "its tokenizer is another one, to which the same tokens are other texts; leave it out"
    if why:
        raise ValueError(f"run.reuse is {path!r}, but {why}")
