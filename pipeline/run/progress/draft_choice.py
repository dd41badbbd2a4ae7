"""What a run knows of the drafts of its list: the choice of a trial, or what was found while they took turns.

They are kept in its drafts/choice.json and drafts/turns.json. Who goes on with the run begins with them, unless the
list has changed. No row depends on it.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

from pipeline.storage.location import Location
from pipeline.storage.whole_file import replace_file, to_json


@dataclass(frozen=True, kw_only=True)
class _Kept:
    """What a run knows, in a file of its own."""

    file: ClassVar[str]

    @classmethod
    def of(cls, run: Location) -> Self | None:
        """Return what a run knows; None if it knows nothing. Raises ValueError for a file that is damaged."""
        file = run.child("drafts").child(cls.file)
        try:
            said = json.loads(file.read_bytes())
            return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in said.items()})
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{file.name} does not say what the run found of its drafts ({error!r}); remove it, and it finds out "
                "again"
            ) from error

    def write(self, run: Location) -> None:
        """Keep it for the run, in place of what was known before."""
        folder, temporary = run.child("drafts"), run.child("_tmp")
        folder.make_folder()
        temporary.make_folder()
        replace_file(folder.child(self.file), to_json(asdict(self)), temporary)
        for other in {DraftChoice.file, DraftTurns.file} - {self.file}:  # of another list, or of other settings
            folder.child(other).remove()


@dataclass(frozen=True, kw_only=True)
class DraftChoice(_Kept):
    """What was taken, from which list, and why: the choice of a trial."""

    file = "choice.json"

    named: tuple[str, ...]  # the list, as the configuration has it
    drafter: str
    draft: str | None  # a folder, for the drafters that have one
    why: str
    measured: tuple[Mapping[str, Any], ...] = ()  # of each drafter its speed and what was accepted, the fastest first
    left_out: tuple[str, ...] = ()  # of the list, with the reasons

    def __str__(self) -> str:
        return f"{self.drafter if self.draft is None else f'{self.draft} ({self.drafter})'}: {self.why}"


@dataclass(frozen=True, kw_only=True)
class DraftTurns(_Kept):
    """Which drafter led at the end of a command in which they took turns, and what each of them did in it."""

    file = "turns.json"

    leader: str
    ratios: Mapping[str, float]  # of those that were tried beside it, their speed over its
    drafts: tuple[Mapping[str, Any], ...]  # the one with most rounds first

    def __str__(self) -> str:
        rounds = sum(each["rounds"] for each in self.drafts)
        said = [
            f"{each['drafts']} {each['rounds'] / rounds:.1%} of the rounds"
            + (f" ({each['times_plain']:.2f} times plain)" if each["times_plain"] is not None else "")
            for each in self.drafts
            if each["rounds"]
        ]
        untried = [each["drafts"] for each in self.drafts if not each["rounds"]]
        return "; ".join(
            [f"{self.leader} led at the end", *said, *([f"no turn: {', '.join(untried)}"] * bool(untried))]
        )
