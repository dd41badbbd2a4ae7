"""`dray compact RUN DESTINATION`: write a run as few large Parquet files, in order.

DESTINATION/data/part-00000.parquet and on hold the generations, sorted by row_id and sample; with --include-errors,
DESTINATION/errors/ the rows that failed; DESTINATION/_dray.json says which run it is, what is in it, and which files.
The run itself is only read. At the end all files are read back, their counts and content are compared with the run's,
and "complete" becomes true in _dray.json. If the command is interrupted, give it again: it starts from the beginning.
Given again after that, it says that the compaction is there, and does nothing.
"""

import argparse
import sys

from jobs.commands import argument, number, on_run, refusals, size
from jobs.names import tell
from pipeline.export.compacted_file import Cut
from pipeline.export.compaction import AlreadyCompacted, CompactedFile, Compaction
from pipeline.run.directory import RunDirectory
from pipeline.run.unit_rows import IncompleteRunError
from pipeline.storage.location import Location

_DEFAULT_BYTES = 512 * 1000**2


def _cut(parser: argparse.ArgumentParser) -> None:
    add = parser.add_mutually_exclusive_group().add_argument
    at_most = "generations in a file, at most; the samples of one input row stay together"
    add("--rows-per-file", metavar="N", type=number, help=at_most)
    about = "size of a file, about, such as 200MB or 1GiB; 512MB unless given"
    add("--bytes-per-file", metavar="SIZE", type=size, help=about)


@on_run(
    "compact",
    __doc__,
    argument("destination", metavar="DESTINATION", help="new folder, or that of an interrupted command"),
    _cut,
    argument("--include-errors", action="store_true", help="also write the rows that failed, in files of their own"),
    argument("--partial", action="store_true", help="take a run with missing units as it is"),
    once_interrupted="the same command starts from the beginning",
)
def main(run_directory: RunDirectory, options: argparse.Namespace) -> int:
    """Return 0 if the files hold the run, 1 if not or if it is incomplete, 2 if it cannot begin, 3 if interrupted."""
    by_bytes = None if options.rows_per_file is not None else options.bytes_per_file or _DEFAULT_BYTES
    try:
        with refusals():
            compaction = Compaction(
                run_directory,
                Location.parse(options.destination),
                Cut(options.rows_per_file, by_bytes),
                include_errors=options.include_errors,
                is_partial=options.partial,
            )
    except IncompleteRunError as error:
        raise ValueError(f"{error}; --partial compacts what there is") from error
    except AlreadyCompacted as there:
        tell(f"OK: {there}", sys.stdout)
        return 0
    files: list[CompactedFile] = []
    for file in compaction.files():
        files.append(file)
        print(f"{file.name}: {file.num_rows:,} rows, {file.num_bytes:,} bytes")
    totals = compaction.finish(files)
    counts = totals.counts
    in_errors = "in errors/" if compaction.include_errors else "left out"
    failed = f" ({counts.num_errors:,} failed rows are {in_errors})" if counts.num_errors else ""
    tell(
        f"OK: {len(files)} file{'s' * (len(files) != 1)} in {compaction.destination.name}, "
        f"{counts.num_generations:,} generations of {counts.num_rows - counts.num_errors:,} rows{failed}; "
        "read back, counts and content are the run's",
        sys.stdout,
    )
    print(f"content {totals.content_hash}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
