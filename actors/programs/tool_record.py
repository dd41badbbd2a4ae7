"""ToolRecord: the results of the tools that a row has called, so that a unit that is repeated meets the same ones.

A tool may answer otherwise the next time (a search, a clock), and then the text behind it would be another one. So a
result is written to a file of its own before the program sees it. The first file of a call wins: all attempts at a unit
go on with its result. The files of a unit are deleted once its part is committed, which has the results in its rows.

On an object store a later file replaces an earlier one, so two attempts at one unit at the same moment may meet
different results; the part that is committed has those that its own text was written with.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from pipeline.logs import failure_event
from pipeline.run.directory import RunDirectory
from pipeline.storage.location import Location
from pipeline.storage.whole_file import create_file

_log = logging.getLogger(__name__)


@dataclass
class ToolRecord:
    """The record of one sample of one row."""

    run_directory: RunDirectory
    row_id: int
    sample: int
    _num_calls: Counter[str] = field(default_factory=Counter)  # by the digest of name and arguments

    def place(self, path: tuple[int, ...], name: str, arguments: dict[str, Any]) -> Location:
        """Return where the result of the next call of this tool with these arguments in this branch is, or will be."""
        called = json.dumps([path, name, arguments], sort_keys=True)
        digest = hashlib.sha256(called.encode()).hexdigest()[:32]
        number = self._num_calls[digest]
        self._num_calls[digest] += 1
        file = f"{self.row_id & 0xFFFFFFFF:08d}-{self.sample}-{digest}-{number}.json"
        return folder_of(self.run_directory, self.row_id >> 32).child(file)

    def read(self, place: Location) -> tuple[Any, ...]:
        """Return the recorded result as the only entry; nothing if there is none."""
        content = place.read_if_there()
        return () if content is None else (json.loads(content),)

    def write(self, place: Location, result: Any) -> Any:
        """Record a result, and return the one that counts: this one, or that of an attempt that was first."""
        folder_of(self.run_directory, self.row_id >> 32).make_folder()
        if create_file(place, json.dumps(result).encode(), self.run_directory.temporary):
            return result
        return json.loads(place.read_bytes())


def folder_of(run_directory: RunDirectory, unit_id: int) -> Location:
    """Return the folder of the results of a unit's tools."""
    return run_directory.location.child(f"tools/unit-{unit_id:09d}")


def forget_results(run_directory: RunDirectory, unit_id: int, row_ids: set[int]) -> None:
    """Delete the recorded results of these rows of a unit, which are committed. Those of failed rows stay for a retry.

    A storage that fails is logged: nothing depends on it.
    """
    folder, names = folder_of(run_directory, unit_id), {f"{row_id & 0xFFFFFFFF:08d}" for row_id in row_ids}
    try:
        for info in folder.list():
            if info.base_name.partition("-")[0] in names:
                folder.at(info.path).remove()
    except OSError as error:
        _log.warning(failure_event("results of tools not deleted", error))
