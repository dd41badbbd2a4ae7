"""The quarantine of a run: where damaged and foreign files go, so that the same command redoes their units alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import count

from pyarrow import fs

from pipeline.run.directory import RunDirectory
from pipeline.storage.location import Location
from pipeline.storage.whole_file import replace_file

_FOLDER = "quarantine"


def quarantine(run_directory: RunDirectory, damaged: Mapping[str, str]) -> list[str]:
    """Where the files went ("quarantine/data/part-000000001.parquet"), in the order of `damaged`: name -> reason.

    Beside each file is a `.json` with its reason, written first; the file keeps its bytes. Parts go before the error
    rows that belong to them: a unit whose part is gone is not committed, and its next attempt replaces its error rows.
    Nobody else may be at work on the run. Raises OSError; what was moved until then stays moved.
    """
    if not damaged:
        return []
    run_directory.unmark_success()
    moved = []
    for name in sorted(damaged, key=lambda name: (not name.startswith("data/"), name)):
        source, place = run_directory.location.child(name), _free_place(run_directory, name)
        place.at(place.path.rpartition("/")[0]).make_folder()
        reason = {"file": name, "reason": damaged[name], "moved": datetime.now(UTC).isoformat("T", "seconds")}
        note = (json.dumps(reason, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")
        replace_file(place.at(f"{place.path}.json"), note, run_directory.temporary)
        _move(source, place)
        moved.append(place.path.removeprefix(f"{run_directory.location.path.rstrip('/')}/"))
    return moved


def _free_place(run_directory: RunDirectory, name: str) -> Location:
    """A place for the file that no earlier quarantine took."""
    for number in count():
        place = run_directory.location.child(f"{_FOLDER}/{name}{f'.{number}' if number else ''}")
        if not place.exists():
            return place
    raise AssertionError("count() does not end")


def _move(source: Location, place: Location) -> None:
    """Move the file. A store copies and deletes; a try whose answer was lost has moved it already."""

    def move() -> None:
        try:
            source.filesystem.move(source.path, place.path)
        except FileNotFoundError:
            if place.info().type == fs.FileType.NotFound:
                raise

    source.retrying("moving away", move)
