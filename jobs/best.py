"""`python -m jobs.best OUTPUT FILE --by COLUMN`: the best row of each prompt of a run, as one Parquet file.

Rows are compared by a column of numbers, such as `logprob` or `perplexity` of a run of scores, or a carried one; the
highest is the best, the lowest with --lowest. Rows of one group are candidates of one prompt: those with the same
`row_id` (samples of a row), or the same value of another column (--group id, where each candidate is a row).
"""

import argparse
import sys
from collections.abc import Sequence

import pyarrow as pa

from jobs.driver.exits import program
from pipeline.export.best import pick_best
from pipeline.run.directory import RunDirectory
from pipeline.run.unit_rows import IncompleteRunError


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0, 1 if the run is incomplete or damaged or the file cannot be written, 2 if there is no such column."""
    options = _parser().parse_args(arguments)
    try:
        run_directory = RunDirectory.open(options.output)
        picked = pick_best(run_directory, options.file, options.by, options.group, lowest=options.lowest)
    except (IncompleteRunError, pa.ArrowException) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    without = f"; {picked.num_without_value:,} rows have no {options.by}" if picked.num_without_value else ""
    print(f"{picked.num_rows:,} best of {picked.num_compared:,} rows in {options.file}{without}")
    return 0


def _parser() -> argparse.ArgumentParser:
    summary, _, explanation = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        prog=program("best"),
        description=summary,
        epilog=explanation,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("output", help="run directory, local or a URI")
    parser.add_argument("file", help="Parquet file to write; one that is there is replaced")
    parser.add_argument("--by", required=True, metavar="COLUMN", help="column of numbers that is compared")
    parser.add_argument("--group", default="row_id", metavar="COLUMN", help="rows with the same value are compared")
    parser.add_argument("--lowest", action="store_true", help="the lowest value is the best")
    return parser


if __name__ == "__main__":
    sys.exit(main())
