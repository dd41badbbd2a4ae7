"""What the measurements share: seconds of a piece of work, lists on a command line, tables, and JSON files."""

import json
import sys
import time
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import asdict, is_dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

CPU = torch.device("cpu")
_MIN_WIDTH = 200  # in a file or a pipe, no figure is cut


def seconds_of(work: Callable[[], object], device: torch.device = CPU, times: int = 1) -> float:
    """Return the seconds of `work`, the mean if it is done several times in a row without waiting in between."""
    synchronize(device)
    started = time.perf_counter()
    for _ in range(times):
        work()
    synchronize(device)
    return (time.perf_counter() - started) / times


def median_seconds(work: Callable[[], object], device: torch.device = CPU, repeats: int = 5) -> float:
    """Return the median seconds of `work`, which is done once more before, untimed."""
    work()
    return median(seconds_of(work, device) for _ in range(repeats))


def synchronize(device: torch.device) -> None:
    """Wait until the device, which may still be busy with earlier work, has done everything it was told to."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def listed(kind: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    """Return what argparse reads a list with commas by; each part is read by `kind`."""

    def parts(text: str) -> tuple[Any, ...]:
        return tuple(kind(part) for part in text.split(",") if part)

    parts.__name__ = f"list of {kind.__name__}"  # what argparse calls it in its message
    return parts


def show(title: str, headings: Seq[str], rows: Iterable[Seq[str]]) -> None:
    """Print a table; the first column is to the left."""
    table = Table(title=title, title_justify="left")
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="right" if index else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console = Console()
    (console if console.is_terminal else Console(width=_MIN_WIDTH)).print(table)


def say(line: str) -> None:
    """Tell what is going on, on standard error."""
    print(line, file=sys.stderr, flush=True)


def write_json(file: Path, facts: dict[str, Any]) -> None:
    """Write what was measured; a dataclass becomes its fields, and a path its name."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(facts, indent=1, default=_as_json) + "\n")


def _as_json(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)
