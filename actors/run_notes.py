"""RunNotes: what the driver of a run and its processes tell each other beside units, such as the draft to use."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class WantedDraft:
    """The version that engines are to use, and its folder; None for the draft that they were configured with."""

    number: int = 0
    path: str | None = None


@dataclass(frozen=True)
class Rejection:
    """Why engines do not use a version."""

    state: str  # as in pipeline/run/progress/draft_versions.py: "refused" or "rolled back"
    reason: str


class RunNotes:
    """Notes of one run. Offers of drafts come from the driver, all else from the processes of engines."""

    def __init__(self) -> None:
        self._offered: dict[int, str] = {}  # folders of drafts
        self._rejections: dict[int, Rejection] = {}  # the first one of a version counts for all engines
        self._warnings: dict[str, str] = {}  # the first text of each kind
        self._written: dict[str, tuple[int, int]] = {}  # by process: the texts and tokens that it has written

    def offer_drafts(self, paths: Mapping[int, str]) -> WantedDraft:
        """Take the versions that may be used now, in place of those before; return the one that engines are to use."""
        self._offered = dict(paths)
        return self.wanted_draft()

    def wanted_draft(self) -> WantedDraft:
        """Return the newest version that no engine has rejected."""
        number = max(self._offered.keys() - self._rejections.keys(), default=0)
        return WantedDraft(number, self._offered[number]) if number else WantedDraft()

    def reject_draft(self, number: int, rejection: Rejection) -> None:
        """Let no engine use this version from now on."""
        self._rejections.setdefault(number, rejection)

    def rejected_drafts(self) -> dict[int, Rejection]:
        """Return the versions that an engine has rejected, and why."""
        return dict(self._rejections)

    def warn(self, kind: str, text: str) -> None:
        """Record a warning for the driver, unless a process has given one of its kind before."""
        self._warnings.setdefault(kind, text)

    def warnings(self) -> list[str]:
        """Return the first warning of each kind, in the order in which they came."""
        return list(self._warnings.values())

    def note_written(self, process: str, num_texts: int, num_tokens: int) -> None:
        """Remember how much the engine of a process has written since it was loaded."""
        self._written[process] = num_texts, num_tokens

    def written(self) -> tuple[int, int]:
        """Return the texts and tokens that all engines have written, those of units that are not committed, too."""
        return sum(texts for texts, _ in self._written.values()), sum(tokens for _, tokens in self._written.values())
