"""`python -m jobs.report OUTPUT [--by COLUMN,COLUMN] [--html]`: acceptance of a run, in total and by columns.

Of a run of scores it is their perplexity. With --html it is written as a page to look at, of a run in progress, too.
"""

import argparse
import sys
from collections.abc import Sequence

from rich.console import Console

from jobs.driver.exits import program
from jobs.driver.summary import print_why_inexact
from jobs.driver.tables import acceptance_table, scores_table
from pipeline.run.directory import RunDirectory
from pipeline.storage.location import Location

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
        has_scores = run_directory.has_scores
        table = (
            scores_table(run_directory, columns)
            if has_scores
            else acceptance_table(run_directory, columns, options.output)
        )
        if not run_directory.committed_parts():
            print(f"{run_directory.location.name} has no parts yet: no unit of it is committed")
            return 0
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    console = Console() if sys.stdout.isatty() else Console(width=_WIDE)
    console.print(table)
    if not has_scores:
        console.print("rate: accepted / drafted tokens; length: tokens a round, 1 + accepted / rounds")
        print_why_inexact(run_directory)
    return 0


def _write_page(run_directory: RunDirectory, columns: Sequence[str], file: str) -> str:
    from jobs.report_page.page import write_page  # here, since it draws charts, which a table does not need

    return write_page(run_directory, columns or None, Location.parse(file) if file else None)


if __name__ == "__main__":
    sys.exit(main())
