"""What the measurements share: repeats of work in turns, command lines, tables, and JSON files."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import asdict, is_dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table as RichTable

from decoding.device import synchronize
from decoding.turns import P, Table, Way, one_repeat

CPU = torch.device("cpu")
_MIN_WIDTH = 200  # in a file or a pipe, no figure is cut
Columns = Seq[tuple[str, str, str]]  # of each column: its heading, the field of a line, and how that is written


def interleaved(ways: Mapping[str, Way[P]], repeats: int, what: str = "") -> Table[P]:
    """Return what `repeats` of each way took, behind one that warms up; `what` is told beside the number of each."""
    one_repeat(ways, 0)
    passes: dict[str, list[P]] = {name: [] for name in ways}
    for repeat in range(1, 1 + repeats):
        for name, found in one_repeat(ways, repeat).items():
            passes[name].append(found)
        say(f"{what}: repeat {repeat} of {repeats}")
    return Table(passes)


def seconds_of(
    work: Callable[[], object],
    device: torch.device = CPU,
    times: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Return the seconds of `work`, the mean if it is done several times in a row without waiting in between."""
    synchronize(device)
    started = clock()
    for _ in range(times):
        work()
    synchronize(device)
    return (clock() - started) / times


def median_seconds(work: Callable[[], object], device: torch.device = CPU, repeats: int = 5) -> float:
    """Return the median seconds of `work`, which is done once more before, untimed."""
    work()
    return median(seconds_of(work, device) for _ in range(repeats))


def parser_of(name: str, about: str | None) -> argparse.ArgumentParser:
    """Return the parser of `python -m benchmarks.NAME`, with --json; `about` is its module's docstring."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}", description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was measured")
    return parser


def listed(kind: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    """Return what argparse reads a list with commas by; each part is read by `kind`."""

    def parts(text: str) -> tuple[Any, ...]:
        return tuple(kind(part) for part in text.split(",") if part)

    parts.__name__ = f"list of {kind.__name__}"  # what argparse calls it in its message
    return parts


def show_lines(title: str, columns: Columns, lines: Iterable[Mapping[str, Any]]) -> None:
    """Print a table with these fields of the lines; a field that is None is a dash."""
    headings = [heading for heading, _, _ in columns]
    show(title, headings, ([written(line[field], style) for _, field, style in columns] for line in lines))


def written(value: Any, style: str) -> str:
    """Return a value in this style; None is a dash."""
    return "-" if value is None else format(value, style)


def show(title: str, headings: Seq[str], rows: Iterable[Seq[str]]) -> None:
    """Print a table; the first column is to the left."""
    table = RichTable(title=title, title_justify="left")
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="right" if index else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console = Console()
    (console if console.is_terminal else Console(width=_MIN_WIDTH)).print(table)


def say(line: str) -> None:
    """Tell what is going on, on standard error."""
    print(line, file=sys.stderr, flush=True)


def write_json(file: Path, facts: Mapping[str, Any]) -> None:
    """Write what was measured; a dataclass becomes its fields, and a path its name."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(facts, indent=1, default=_as_json) + "\n")


def _as_json(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)
