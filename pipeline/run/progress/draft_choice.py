"""DraftChoice: the draft that a trial took for a run from a list, kept in its drafts/choice.json.

Who goes on with the run drafts with it again, unless the list has changed. No row depends on it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pipeline.storage.location import Location
from pipeline.storage.whole_file import replace_file, to_json


@dataclass(frozen=True, kw_only=True)
class DraftChoice:
    """What was taken, from which list, and why."""

    named: tuple[str, ...]  # the list, as the configuration has it
    drafter: str
    draft: str | None  # a folder, for the drafters that have one
    why: str
    measured: tuple[Mapping[str, Any], ...] = ()  # of each drafter its speed and what was accepted, the fastest first
    left_out: tuple[str, ...] = ()  # of the list, with the reasons

    @classmethod
    def of(cls, run: Location) -> DraftChoice | None:
        """Return the choice of a run; None if none was made. Raises ValueError for a file that is damaged."""
        file = run.child("drafts").child("choice.json")
        try:
            said = json.loads(file.read_bytes())
            return cls(**said | {name: tuple(said[name]) for name in ("named", "measured", "left_out")})
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{file.name} does not describe the choice of a draft ({error!r}); remove it, and a trial decides again"
            ) from error

    def write(self, run: Location) -> None:
        """Keep it for the run, in place of an earlier one."""
        folder, temporary = run.child("drafts"), run.child("_tmp")
        folder.make_folder()
        temporary.make_folder()
        replace_file(folder.child("choice.json"), to_json(asdict(self)), temporary)

    def __str__(self) -> str:
        return f"{self.drafter if self.draft is None else f'{self.draft} ({self.drafter})'}: {self.why}"
