"""`python -m jobs.report OUTPUT [--by COLUMN,COLUMN] [--html]`: acceptance of a run, in total and by columns.

Of a run of scores it is their perplexity. With --html it is written as a page to look at, of a run in progress, too.
"""

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow.dataset as ds
from rich.console import Console
from rich.table import Table
from rich.text import Text

from jobs.driver.exits import program
from jobs.driver.progress import format_length, format_rate
from jobs.driver.scores import scores_table
from jobs.driver.summary import print_why_inexact
from pipeline.counts import Counts, count_generations
from pipeline.inputs.arrow_values import Cells, plain_values, shown_values
from pipeline.run.directory import RunDirectory
from pipeline.run.unit_rows import pick_rows
from pipeline.storage.location import Location
from pipeline.text.visible import visible

_WIDE = 200  # columns, where the output is no terminal: a file, or another program


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report; return 0, or 2 if there is no such run or column."""
    parser = argparse.ArgumentParser(prog=program("report"), description=__doc__)
    parser.add_argument("output", help="run directory, local or a URI")
    parser.add_argument(
        "--by",
        metavar="COLUMN,COLUMN",
        default="",
        help="group by these columns, such as draft_version or carried ones",
    )
    parser.add_argument(
        "--html",
        nargs="?",
        const="",
        metavar="FILE",
        help="write the page report.html into the run directory, or another file",
    )
    options = parser.parse_args(arguments)
    columns = [name.strip() for name in options.by.split(",") if name.strip()]
    try:
        run_directory = RunDirectory.open(options.output)
        if options.html is not None:
            print(_write_page(run_directory, columns, options.html))
            return 0
        if run_directory.has_scores:
            _console().print(scores_table(run_directory, columns))
            return 0
        groups = dict(acceptance_by(run_directory, columns))
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    table = Table(title=f"Acceptance in {options.output}", title_justify="left")
    for name in columns or [""]:
        table.add_column(name, no_wrap=True)
    for heading in ("generations", "tokens", "rate", "length"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("stood, by draft position")  # the one that wraps, so that no number is cut off
    for values, counts in groups.items():
        table.add_row(*(Text(visible(value)) for value in values), *cells(counts))
    if columns:
        table.add_row("all", *[""] * (len(columns) - 1), *cells(sum(groups.values(), Counts())), style="bold")
    console = _console()
    console.print(table)
    console.print("rate: accepted / drafted tokens; length: tokens a round, 1 + accepted / rounds")
    print_why_inexact(run_directory)
    return 0


def _write_page(run_directory: RunDirectory, columns: Sequence[str], file: str) -> str:
    from jobs.report_page.page import write_page  # here, since it draws charts, which a table does not need

    return write_page(run_directory, columns or None, Location.parse(file) if file else None)


def _console() -> Console:
    return Console() if sys.stdout.isatty() else Console(width=_WIDE)


def acceptance_by(run_directory: RunDirectory, columns: Sequence[str]) -> Iterator[tuple[tuple[str, ...], Counts]]:
    """Yield the counts of each combination of values of these columns, or of the whole run without one.

    One part is read at a time.
    """
    groups: dict[tuple[Any, ...], Counts] = {}
    location = run_directory.location.child("data")
    parts = ds.dataset(location.path, filesystem=location.filesystem, format="parquet")
    for name in columns:
        if name not in parts.schema.names:
            raise ValueError(f"the output has no column {name!r}; it has {', '.join(parts.schema.names)}")
    for fragment in parts.get_fragments():
        table = fragment.to_table()
        values = [_sortable(table[name]) for name in columns]
        of_rows = list(zip(*values, strict=True)) if columns else [((1, "run"),)] * table.num_rows
        for group in dict.fromkeys(of_rows):
            rows = pick_rows(table, [index for index, other in enumerate(of_rows) if other == group])
            groups[group] = groups.get(group, Counts()) + count_generations(rows, num_errors=0)
    for group, counts in sorted(groups.items()):
        yield tuple(str(value) for _, value in group), counts


def _sortable(column: Cells) -> list[tuple[int, Any]]:
    """Return values that can be compared and hashed: numbers as they are, all others as text behind them."""
    pairs = zip(plain_values(column), shown_values(column), strict=True)
    return [(0, v) if isinstance(v, int | float) and not math.isnan(v) else (1, text) for v, text in pairs]


def cells(counts: Counts) -> list[str]:
    """Return generations, tokens, acceptance rate, mean acceptance length and acceptance by draft position as text."""
    rounds = max(counts.num_rounds, 1)
    by_position = " ".join(f"{accepted / rounds:.2f}" for accepted in counts.accepted_per_position)
    return [
        f"{counts.num_generations:,}",
        f"{counts.num_output_tokens:,}",
        format_rate(counts.acceptance_rate),
        format_length(counts.mean_acceptance_length),
        by_position or "-",
    ]


if __name__ == "__main__":
    sys.exit(main())
