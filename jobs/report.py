"""`python -m jobs.report OUTPUT [--by COLUMN]`: acceptance of a run, in total and by a carried column."""

import argparse
import sys
from collections.abc import Iterator, Sequence

import pyarrow.dataset as ds
from rich.console import Console
from rich.table import Table

from jobs.driver.progress import format_length, format_rate
from jobs.driver.summary import print_why_inexact
from pipeline.counts import Counts, count_generations
from pipeline.run.directory import RunDirectory


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report; return 0, or 2 if there is no such run or column."""
    parser = argparse.ArgumentParser(prog="python -m jobs.report", description=__doc__)
    parser.add_argument("output", help="run directory, local or a URI")
    parser.add_argument("--by", metavar="COLUMN", help="group by this column, such as a carried one")
    options = parser.parse_args(arguments)
    try:
        run_directory = RunDirectory.open(options.output)
        groups = dict(acceptance_by(run_directory, options.by))
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    table = Table(title=f"Acceptance in {options.output}", title_justify="left")
    table.add_column(options.by or "", no_wrap=True)
    for heading in ("rows", "tokens", "rate", "length", "stood, by draft position"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, counts in groups.items():
        table.add_row(name, *cells(counts))
    if options.by:
        table.add_row("all", *cells(sum(groups.values(), Counts())), style="bold")
    console = Console()
    console.print(table)
    console.print("rate: accepted / drafted tokens; length: tokens a round, 1 + accepted / rounds")
    print_why_inexact(run_directory)
    return 0


def acceptance_by(run_directory: RunDirectory, column: str | None) -> Iterator[tuple[str, Counts]]:
    """Yield the counts of each value of a column, or of the whole run without one; reads one part at a time."""
    groups: dict[str, Counts] = {}
    location = run_directory.location.child("data")
    parts = ds.dataset(location.path, filesystem=location.filesystem, format="parquet")
    if column is not None and column not in parts.schema.names:
        raise ValueError(f"the output has no column {column!r}; it has {', '.join(parts.schema.names)}")
    for fragment in parts.get_fragments():
        table = fragment.to_table()
        values = ["run"] * table.num_rows if column is None else [str(value) for value in table[column].to_pylist()]
        for value in dict.fromkeys(values):
            rows = table.take([index for index, other in enumerate(values) if other == value])
            groups[value] = groups.get(value, Counts()) + count_generations(rows, num_errors=0)
    yield from sorted(groups.items())


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
