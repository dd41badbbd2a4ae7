"""The end of a run on a terminal: some of its texts, and where its report is."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from jobs.config.run import RunSettings
from pipeline.inputs.values import visible
from pipeline.run.directory import RunDirectory
from pipeline.run.unit_rows import read_unit_rows

_MOST_LINES, _MOST_COLUMNS = 4, 280
_MOST_CHARACTERS = 4 * _MOST_COLUMNS  # a text of accents alone fills no column
_TAB_COLUMNS = 8
_NUM_ON_A_TERMINAL = 3
_REPORTS = ("report.html", "report.json")


@dataclass(frozen=True)
class Sample:
    """A generation to look at."""

    row_id: int
    prompt: str
    text: str


def print_ending(run_directory: RunDirectory, settings: RunSettings) -> None:
    """Print some texts of a run, none unless asked for where the output is no terminal, and the path of its report."""
    console = Console()
    asked = settings.show_texts
    num_wanted = asked if asked is not None else _NUM_ON_A_TERMINAL * console.is_terminal
    try:
        for sample in [] if run_directory.has_scores else samples(run_directory, num_wanted):
            console.print(Text(f"row {sample.row_id}", style="bold"))
            console.print(Text(_quoted(shortened(sample.prompt)), style="dim"))
            console.print(Text(shortened(sample.text)), end="\n\n")
    except (ValueError, OSError) as error:  # the run was verified, and is complete
        print(f"note: its texts cannot be shown: {error}", file=sys.stderr)
    if (report := report_of(run_directory)) is not None:
        print(f"report: {report}")


def samples(run_directory: RunDirectory, num_wanted: int) -> Iterator[Sample]:
    """Yield the first generations of `num_wanted` units, spread over the committed ones: the same ones at each call."""
    unit_ids = sorted(run_directory.committed_unit_ids())
    num = min(num_wanted, len(unit_ids))
    chosen = {unit_ids[(2 * place + 1) * len(unit_ids) // (2 * num)] for place in range(num)}
    columns = ["row_id", "sample", "prompt", "text"]
    for unit in run_directory.units() if chosen else ():
        if unit.unit_id in chosen:
            rows = read_unit_rows(run_directory, unit, has_errors=False, columns=columns).generations.slice(0, 1)
            for row in rows.to_pylist():  # none in a unit whose rows have all failed
                yield Sample(row["row_id"], row["prompt"] or "", row["text"])


def shortened(text: str) -> str:
    """Return the first lines of a text, as far as they fill no more than some columns of a terminal."""
    safe = visible(text.strip())
    lines = "\n".join(safe.split("\n")[:_MOST_LINES])
    # A wide letter fills two columns, and an accent none.
    widths = accumulate(_TAB_COLUMNS if letter == "\t" else cell_len(letter) for letter in lines[:_MOST_CHARACTERS])
    cut = lines[: sum(1 for width in widths if width <= _MOST_COLUMNS)].rstrip()
    return cut if cut == safe else f"{cut} ..."


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}" for line in text.split("\n"))


def report_of(run_directory: RunDirectory) -> str | None:
    """Return where the report of a run is: the page, else the figures; None if it has none yet."""
    places = (run_directory.location.child(name) for name in _REPORTS)
    return next((place.name for place in places if place.exists()), None)
