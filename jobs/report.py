"""`dray report RUN [--by COLUMN,COLUMN] [--html]`: acceptance of a run, in total and by columns.

Of a run of scores it says their perplexity. --html writes it as a page to look at, also while the run goes on.
"""

import argparse
import sys

from rich.console import Console

from jobs.commands import argument, on_run, refusals
from jobs.driver.summary import print_why_inexact, tally_table
from pipeline.run.directory import RunDirectory
from pipeline.storage.location import Location

_WIDE = 200  # columns, where the output is no terminal: a file, or another program


@on_run(
    "report",
    __doc__,
    argument(
        "--by",
        metavar="COLUMN,COLUMN",
        default="",
        help="group by these columns, such as draft_version or carried ones",
    ),
    argument(
        "--html",
        nargs="?",
        const="",
        metavar="FILE",
        help="write the page report.html into the run directory, or another file",
    ),
)
def main(run_directory: RunDirectory, options: argparse.Namespace) -> int:
    """Print the report; return 0, or 2 if there is no such run or column."""
    columns = [name.strip() for name in options.by.split(",") if name.strip()]
    with refusals():
        if options.html is not None:
            from jobs.report_page.page import write_page  # here, since it draws charts, which a table does not need

            print(write_page(run_directory, columns or None, Location.parse(options.html) if options.html else None))
            return 0
        table = tally_table(run_directory, columns)
        if not run_directory.committed_parts():
            print(f"{run_directory.location.name} has no parts yet: no unit of it is committed")
            return 0
    console = Console() if sys.stdout.isatty() else Console(width=_WIDE)
    console.print(table)
    if not run_directory.has("scores"):
        console.print(
            "rate: accepted / drafted tokens; length: tokens a round, 1 + accepted / rounds\n"
            "by draft position: share of rounds in which the 1st, 2nd, ... drafted token was\naccepted"
        )
        print_why_inexact(run_directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
