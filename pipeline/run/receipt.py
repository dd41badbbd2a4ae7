"""The receipt of a committed unit: what the driver gets back, and what the part's footer keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.counts import Counts


@dataclass(frozen=True)
class Receipt:
    """One unit is done. `already_committed` says that another attempt did it; the counts are that attempt's.

    `seconds` is how long the attempt took, where somebody measured it.
    """

    unit_id: int
    counts: Counts
    attempt: int
    already_committed: bool = False
    seconds: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dict."""
        return {
            "unit_id": self.unit_id,
            "counts": self.counts.to_dict(),
            "attempt": self.attempt,
            "already_committed": self.already_committed,
            "seconds": self.seconds,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Receipt:
        """The receipt that `to_dict` wrote."""
        return cls(**{**values, "counts": Counts.from_dict(values["counts"])})
