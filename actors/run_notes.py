"""RunNotes: what the driver of a run and its processes tell each other beside units, such as the draft to use."""

from collections.abc import Mapping
from dataclasses import dataclass

from decoding.pace.learned import Learned
from pipeline.counts import Sums

_IDLE = 0.01  # of the time: a draft actor that drafts less only tries now and then


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


@dataclass(frozen=True)
class WrittenText:
    """A finished text for a person to look at."""

    row: str  # its name
    prompt: str
    text: str


@dataclass(frozen=True)
class DraftWork(Sums):
    """The seconds of engines and of their draft actors, and what they did with them."""

    engine_seconds: float = 0.0  # in which engines worked
    actor_seconds: float = 0.0  # the same of all draft actors: each is there as long as its engine works
    wait_seconds: float = 0.0  # that engines waited for drafts
    draft_seconds: float = 0.0  # that draft actors drafted

    def __str__(self) -> str:
        """Return it in words; an empty text where there are no draft actors."""
        if not self.engine_seconds:
            return ""
        drafting, waiting = self.draft_seconds / self.actor_seconds, self.wait_seconds / self.engine_seconds
        words = f"draft actors drafted {drafting:.0%} of the engines' time, and engines waited for them {waiting:.0%}"
        is_idle = drafting < _IDLE
        return words + "; they stand idle, since drafts do not pay at this delay (docs/placements.md)" * is_idle


class RunNotes:
    """Notes of one run. Offers of drafts come from the driver, all else from the processes of engines."""

    def __init__(self) -> None:
        self._offered: dict[int, str] = {}  # folders of drafts
        self._rejections: dict[int, Rejection] = {}  # the first one of a version counts for all engines
        self._warnings: dict[str, str] = {}  # the first text of each kind
        self._written: dict[str, tuple[int, int]] = {}  # by process: the texts and tokens that it has written
        self._draft_work: dict[str, DraftWork] = {}  # by process
        self._learned: dict[str, Learned] = {}  # by process, of drafters that take turns
        self._first_text: WrittenText | None = None

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

    def note_text(self, text: WrittenText) -> None:
        """Keep a finished text, if it is the first."""
        self._first_text = self._first_text or text

    def first_text(self) -> WrittenText | None:
        """Return the first finished text that an engine has told, perhaps of a unit that is not committed."""
        return self._first_text

    def note_draft_work(self, process: str, work: DraftWork) -> None:
        """Remember what the engine of a process and its draft actors did since it was loaded."""
        self._draft_work[process] = work

    def note_learned(self, process: str, learned: Learned) -> Learned | None:
        """Keep what the engine of a process has learned of its drafters; return what others have, None if nothing."""
        self._learned[process] = learned
        others = [each for other, each in self._learned.items() if other != process]
        return Learned.together(others) if others else None

    def learned(self) -> Learned | None:
        """Return what all engines have learned; None where no drafters take turns."""
        return Learned.together(list(self._learned.values())) if self._learned else None

    def draft_work(self) -> str:
        """Return in words how much draft actors were at work, and how much engines waited; empty without any."""
        return str(sum(list(self._draft_work.values()), DraftWork()))

    def written(self) -> tuple[int, int]:
        """Return the texts and tokens that all engines have written, those of units that are not committed, too."""
        by_process = list(self._written.values())  # at once: in a local run another thread notes more meanwhile
        return sum(texts for texts, _ in by_process), sum(tokens for _, tokens in by_process)
