"""`dray best RUN FILE --by COLUMN`: write the best row of each prompt of a run to one Parquet file.

Rows are compared by a column of numbers, such as `logprob` or `perplexity` of a run of scores, or a carried one; the
highest is the best, the lowest with --lowest. Rows of one group are candidates of one prompt: those with the same
`row_id` (samples of a row), or the same value of another column (--group id, where each candidate is a row).
"""

import argparse
import sys

from jobs.commands import argument, on_run, refusals
from pipeline.export.best import pick_best
from pipeline.run.directory import RunDirectory


@on_run(
    "best",
    __doc__,
    argument("file", metavar="FILE", help="Parquet file to write; one that is there is replaced"),
    argument("--by", required=True, metavar="COLUMN", help="column of numbers that is compared"),
    argument("--group", default="row_id", metavar="COLUMN", help="rows with the same value are compared"),
    argument("--lowest", action="store_true", help="the lowest value is the best"),
)
def main(run_directory: RunDirectory, options: argparse.Namespace) -> int:
    """Return 0, 1 if the run is incomplete, 2 if there is no such column or the file cannot be written."""
    with refusals():
        picked = pick_best(run_directory, options.file, options.by, options.group, lowest=options.lowest)
    without = f"; {picked.num_without_value:,} rows have no {options.by}" if picked.num_without_value else ""
    print(f"{picked.num_rows:,} best of {picked.num_compared:,} rows in {options.file}{without}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
