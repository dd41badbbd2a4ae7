"""`python -m jobs.compact OUTPUT DESTINATION`: a run as few large Parquet files, sorted by row_id and sample.

DESTINATION/data/part-00000.parquet and on hold the generations; with --include-errors, DESTINATION/errors/ the rows
that failed; DESTINATION/_dray.json says which run it is, what is in it, and which files. The run itself is only read.
At the end all files are read back, their counts and content are compared with the run's, and "complete" becomes true
in _dray.json. If the command is interrupted, give it again: it starts from the beginning. Given again after that, it
says that the compaction is there, and does nothing.
"""

import argparse
import sys
from collections.abc import Sequence
from contextlib import suppress

import pyarrow as pa
from pydantic import ByteSize, TypeAdapter

from jobs.driver.exits import program
from pipeline.export.compacted_file import Cut
from pipeline.export.compaction import AlreadyCompacted, CompactedFile, Compaction
from pipeline.run.directory import RunDirectory
from pipeline.run.unit_rows import IncompleteRunError
from pipeline.storage.location import Location

_DEFAULT_BYTES = 512 * 1000**2


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if the files hold the run, 1 if not or if it is incomplete, 2 if it cannot begin, 3 if interrupted."""
    options = _parser().parse_args(arguments)
    by_bytes = None if options.rows_per_file is not None else options.bytes_per_file or _DEFAULT_BYTES
    try:
        run_directory, destination = RunDirectory.open(options.output), Location.parse(options.destination)
        cut = Cut(options.rows_per_file, by_bytes)
        compaction = Compaction(
            run_directory, destination, cut, include_errors=options.include_errors, is_partial=options.partial
        )
    except IncompleteRunError as error:
        print(f"error: {error}; --partial compacts what there is", file=sys.stderr)
        return 1
    except AlreadyCompacted as there:
        print(f"OK: {there}")
        return 0
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    try:
        return _compact(compaction)
    except (ValueError, OSError, pa.ArrowException) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted; the same command starts from the beginning", file=sys.stderr)
        return 3


def _compact(compaction: Compaction) -> int:
    files: list[CompactedFile] = []
    for file in compaction.files():
        files.append(file)
        print(f"{file.name}: {file.num_rows:,} rows, {file.num_bytes:,} bytes")
    totals = compaction.finish(files)
    counts = totals.counts
    in_errors = "in errors/" if compaction.include_errors else "left out"
    print(
        f"OK: {len(files)} files in {compaction.destination.name}, {counts.num_generations:,} generations of "
        f"{counts.num_rows - counts.num_errors:,} rows ({counts.num_errors:,} failed rows are {in_errors}); "
        "read back, counts and content are the run's"
    )
    print(f"content {totals.content_hash}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program("compact"), description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("output", metavar="OUTPUT", help="run directory, local or a URI (s3://, gs://)")
    add("destination", metavar="DESTINATION", help="new folder, or that of an interrupted command")
    cut = parser.add_mutually_exclusive_group()
    cut.add_argument(
        "--rows-per-file",
        metavar="N",
        type=_count,
        help="generations in a file, at most; the samples of one input row stay together",
    )
    cut.add_argument(
        "--bytes-per-file",
        metavar="SIZE",
        type=_size,
        help="size of a file, about, such as 200MB or 1GiB; 512MB unless given",
    )
    add("--include-errors", action="store_true", help="also write the rows that failed, in files of their own")
    add("--partial", action="store_true", help="take a run with missing units as it is")
    return parser


def _count(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a number from 1 on, got {text!r}")
    return number


def _size(text: str) -> int:
    """Read a number of bytes from a text such as "200MB"."""
    with suppress(ValueError):
        if (size := TypeAdapter(ByteSize).validate_python(text)) >= 1:
            return int(size)
    raise argparse.ArgumentTypeError(f"expected a size such as 200MB or 1GiB, got {text!r}")


if __name__ == "__main__":
    sys.exit(main())
