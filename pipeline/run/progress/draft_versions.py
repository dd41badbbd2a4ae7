"""DraftVersions: the drafts that were offered to a run after it began, a small file each in its folder drafts/.

A version's number is that of its file; 0 is the draft that the run began with and has no file. The newest version that
is neither refused nor rolled back is the one in use. No row depends on it: a draft changes how fast a text is written.
"""

import json
import re
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Literal, get_args

from pipeline.storage.location import Location
from pipeline.storage.whole_file import create_file, replace_file, to_json

State = Literal["offered", "refused", "rolled back"]
_NAME = re.compile(r"version-(\d{6,})\.json")


@dataclass(frozen=True)
class DraftVersion:
    """A draft that was offered: where its folder is, and what became of it."""

    number: int
    path: str
    state: State
    reason: str  # why it was refused or rolled back
    time: str  # of the last change

    def to_bytes(self) -> bytes:
        """Return the content of its file."""
        said = asdict(self)
        return to_json({"version": said.pop("number"), **said})

    @property
    def is_offered(self) -> bool:
        """Whether engines may take it."""
        return self.state == "offered"


class DraftVersions:
    """The versions of one run, as its folder says; any process may read them."""

    def __init__(self, run: str | Location) -> None:
        """Take the run directory."""
        run = run if isinstance(run, Location) else Location.parse(run)
        self._folder, self._temporary = run.child("drafts"), run.child("_tmp")

    def all(self) -> list[DraftVersion]:
        """Return all versions, the oldest first. Raises ValueError for a file that is none, and OSError."""
        names = (_NAME.fullmatch(info.base_name) for info in self._folder.list())
        return [self._read(number) for number in sorted(int(name[1]) for name in names if name)]

    def in_use(self) -> DraftVersion | None:
        """Return the newest version that engines may take; None for the draft that the run began with."""
        return next((version for version in reversed(self.all()) if version.is_offered), None)

    def offer(self, path: str) -> DraftVersion:
        """Write a new version, and return it."""
        self._folder.make_folder()
        self._temporary.make_folder()
        while True:
            numbers = [version.number for version in self.all()]
            version = DraftVersion(max(numbers, default=0) + 1, path, "offered", "", _now())
            if create_file(self._file(version.number), version.to_bytes(), self._temporary):
                return version

    def mark(self, number: int, state: State, reason: str) -> None:
        """Write what became of a version."""
        version = replace(self._read(number), state=state, reason=reason, time=_now())
        self._temporary.make_folder()
        replace_file(self._file(number), version.to_bytes(), self._temporary)

    def _file(self, number: int) -> Location:
        return self._folder.child(f"version-{number:06d}.json")

    def _read(self, number: int) -> DraftVersion:
        file = self._file(number)
        try:
            said = json.loads(file.read_bytes())
            version = DraftVersion(said["version"], said["path"], said["state"], said["reason"], said["time"])
            if version.number != number or version.state not in get_args(State):
                raise ValueError(f"version {version.number}, state {version.state!r}")
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{file.name} does not describe a version of a draft ({error}); move the file away"
            ) from error
        return version


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
