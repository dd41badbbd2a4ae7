"""PartResult: what came of one part of the check-up, kept as a file. Where the file exists, the part has run."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

Status = Literal["done", "failed", "stopped", "not measured"]
Kept = Mapping[str, "PartResult"]  # by the name of the part


@dataclass(frozen=True, kw_only=True)
class PartResult:
    """What a part measured, whole or as far as it came."""

    part: str
    status: Status
    command: str = ""
    started: str = ""  # UTC
    seconds: float = 0.0
    why: str = ""  # it is not done
    measured: Mapping[str, Any] | None = None  # what its command wrote; None if it wrote nothing

    @property
    def has_run(self) -> bool:
        """Whether it need not run again, unless that is asked for: a part that failed would fail again."""
        return self.status != "not measured"


def read_results(folder: Path) -> dict[str, PartResult]:
    """Return what is kept in the folder, by the name of the part; raise ValueError for a file that is no result."""
    kept: dict[str, PartResult] = {}
    for file in sorted(folder.glob("*.json")):
        if file.suffixes != [".json"]:  # what a command wrote itself
            continue
        try:
            result = PartResult(**json.loads(file.read_text()))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{file} is no result of a part ({error}); remove it, and the part runs again") from error
        kept[result.part] = result
    return kept


def keep(result: PartResult, folder: Path) -> None:
    """Write a result whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f"{result.part}.json.part"
    unfinished.write_text(json.dumps(asdict(result), indent=1) + "\n")
    os.replace(unfinished, folder / f"{result.part}.json")


def forget(part: str, folder: Path) -> None:
    """Remove what is kept of a part."""
    for suffix in (".json", ".measured.json", ".log"):
        (folder / f"{part}{suffix}").unlink(missing_ok=True)
