"""`python -m jobs.bench`: the benchmark. Prints tables; --json and --chart write files (`benchmarks/README.md`)."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from benchmarks import run

_MIN_WIDTH = 200  # where nobody looks (a file, a pipe), no figure is cut


def main(arguments: Sequence[str] | None = None) -> int:
    """0, or 2 for what cannot be measured."""
    return run.run(arguments, "python -m jobs.bench", _show)


def _show(table: run.Table) -> None:
    title, headings, rows = table
    shown = Table(title=title, title_justify="left")
    for index, heading in enumerate(headings):
        shown.add_column(heading, justify="right" if index else "left", no_wrap=True)
    for row in rows:
        shown.add_row(*row)
    console = Console()
    if not console.is_terminal:
        console = Console(width=_MIN_WIDTH)
    console.print(shown)


if __name__ == "__main__":
    sys.exit(main())
