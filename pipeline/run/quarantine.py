"""The quarantine of a run: a folder for damaged and foreign files, so that the same command redoes only their units."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import count

from pyarrow import fs

from pipeline.run.directory import RunDirectory
from pipeline.storage.location import Location
from pipeline.storage.whole_file import replace_file


def quarantine(run_directory: RunDirectory, damaged: Mapping[str, str]) -> list[str]:
    """Move the files, given with their reasons, away; return their new names ("quarantine/data/part-...").

    A `.json` beside each file, written first, holds its reason; the file keeps its bytes. Parts are moved before the
    error rows that belong to them: a unit without its part is not committed, and its next attempt replaces its error
    rows. The caller makes sure that no other process works on the run. Raises OSError; files that were moved by then
    stay moved.
    """
    if not damaged:
        return []
    run_directory.unmark_success()
    moved = []
    for name in sorted(damaged, key=lambda name: (not name.startswith("data/"), name)):
        source, target = run_directory.location.child(name), _free_location(run_directory, name)
        target.at(target.path.rpartition("/")[0]).make_folder()
        reason = {"file": name, "reason": damaged[name], "moved": datetime.now(UTC).isoformat("T", "seconds")}
        note = (json.dumps(reason, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")
        replace_file(target.at(f"{target.path}.json"), note, run_directory.temporary)
        _move(source, target)
        moved.append(target.path.removeprefix(f"{run_directory.location.path.rstrip('/')}/"))
    return moved


def _free_location(run_directory: RunDirectory, name: str) -> Location:
    """Find a name for the file that no earlier quarantine took."""
    names = (f"quarantine/{name}{f'.{number}' if number else ''}" for number in count())
    return next(free for free in map(run_directory.location.child, names) if not free.exists())


def _move(source: Location, target: Location) -> None:
    """Move the file; a store copies it and deletes the old one."""

    def move() -> None:
        try:
            source.filesystem.move(source.path, target.path)
        except FileNotFoundError:  # an earlier try whose answer was lost may have moved it
            if target.info().type == fs.FileType.NotFound:
                raise

    source.retrying("moving away", move)
