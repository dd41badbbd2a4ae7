"""`dray show RUN --row ID [--sample N]`: show a row, with what was drafted, accepted and rejected.

RUN may also be one part of a run, such as part-000000003.parquet, wherever it was copied to, or a publication.

--regenerate writes the row again, as `dray audit` does, and says whether it is the same; then the exit code is 0 if it
is, 1 if it is not, and 2 if it cannot be written again.

ID is the row's own id, its file and number there (questions.jsonl#17), or its row_id.
Brackets say what the colours say: [[accepted]], [-rejected-], {+corrected+}.
"""

import argparse
import sys

from rich.console import Console

from jobs.commands import WRITES_AGAIN, argument, on_run, refusals
from jobs.report_page.samples import codec_or_why_not, find_rows, samples_of_found
from jobs.runs.row_text import row_text
from pipeline.export.published_run import opened
from pipeline.run.directory import RunDirectory

_WIDE = 120  # columns, where the output is no terminal
_MAX_ROWS = 5  # of one id


@on_run(
    "show",
    __doc__,
    argument("--row", required=True, metavar="ID", help="the row's own id, or FILE#NUMBER"),
    argument("--regenerate", action="store_true", help="write the row again, and compare"),
    *WRITES_AGAIN,
    argument("--sample", type=int, metavar="N", help="only this one of its samples, from 0"),
    open_run=opened,
)
def main(run_directory: RunDirectory, options: argparse.Namespace) -> int:
    """Print the row; return 0, or 2 if there is no such run, row or sample."""
    console = Console() if sys.stdout.isatty() else Console(width=_WIDE)
    with refusals():
        found = find_rows(run_directory, options.row)
        codec, why_unmarked = codec_or_why_not(run_directory, options.tokenizer or options.model)
        for unit, row_id in found[:_MAX_ROWS]:
            for sample in samples_of_found(run_directory, unit, row_id, codec, options.sample):
                console.print(row_text(sample, why_unmarked, has_column=run_directory.has("rounds")))
    if len(found) > _MAX_ROWS:
        others = ", ".join(unit.row_name(row_id, None) for unit, row_id in found[_MAX_ROWS : 2 * _MAX_ROWS])
        print(f"{len(found) - _MAX_ROWS} more rows have this id; the next are {others}")
    if options.regenerate:
        from jobs.runs.audit import regenerate  # here, since it loads models

        with refusals():
            return regenerate(run_directory, found[:_MAX_ROWS], options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
