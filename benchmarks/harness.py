"""What the measurements share: repeats of work in turns, command lines, tables, and JSON files."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from statistics import median
from typing import Any, Generic

import torch
from rich.console import Console
from rich.table import Table as RichTable

from decoding.device import synchronize
from decoding.turns import P, Way, one_repeat

CPU = torch.device("cpu")
_MIN_WIDTH = 200  # in a file or a pipe, no figure is cut
Columns = Seq[tuple[str, str, str]]  # of each column: its heading, the field of a line, and how that is written


def whole(work: Callable[[int], P]) -> Way[P]:
    """Return a way that does all its work in one turn."""

    def way(repeat: int) -> Generator[None, None, P]:
        return work(repeat)
        yield

    return way


@dataclass(frozen=True)
class Table(Generic[P]):
    """The repeats of some ways; every speed and every ratio is that of the same medians."""

    passes: dict[str, list[P]]

    def ratios(self, name: str, other: str, seconds: str = "seconds") -> list[float]:
        """Return how many times the speed of `other` a way had, in each repeat."""
        return paired_ratios(self.speeds(name, seconds), self.speeds(other, seconds))

    def speed(self, name: str) -> float:
        """Return what a way does in a second: the first way's median speed, times the median of the paired ratios."""
        first = next(iter(self.passes))
        return median(self.speeds(first)) * median(self.ratios(name, first))

    def speeds(self, name: str, seconds: str = "seconds") -> list[float]:
        """Return what a way did in a second, by this field of its repeats."""
        return [each.done / getattr(each, seconds) for each in self.passes[name]]


def paired_ratios(upper: Iterable[float], lower: Iterable[float]) -> list[float]:
    """Return the ratio within each repeat."""
    return [a / b for a, b in zip(upper, lower, strict=True)]


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
