"""DraftOffers: the drafts that were offered to a run, and which of them its engines are to use now."""

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


class DraftOffers:
    """Offers come from the driver, rejections from engines; the first rejection of a version counts for all engines."""

    def __init__(self) -> None:
        """Begin without offers."""
        self._paths: dict[int, str] = {}
        self._rejections: dict[int, Rejection] = {}

    def offer(self, paths: Mapping[int, str]) -> None:
        """Take the versions that may be used now, in place of those that came before."""
        self._paths = dict(paths)

    def reject(self, number: int, rejection: Rejection) -> None:
        """Let no engine use this version from now on."""
        self._rejections.setdefault(number, rejection)

    @property
    def rejections(self) -> dict[int, Rejection]:
        """The versions that an engine has rejected, and why."""
        return dict(self._rejections)

    @property
    def wanted(self) -> WantedDraft:
        """The newest version that no engine has rejected."""
        number = max(self._paths.keys() - self._rejections.keys(), default=0)
        return WantedDraft(number, self._paths[number]) if number else WantedDraft()
