"""`dray diff RUN RUN`: say which texts of two runs differ, and from where on.

Rows are compared whose own ids are the same, or else whose files have the same name and whose numbers are the same
there; samples by their numbers. --by groups by columns of the second run. --html draws the changed texts side by side.
Exit code 0 if no text differs, 1 if one does, 2 if they cannot be compared.
"""

import sys

from jobs.commands import argument, number, with_options

main = with_options(
    "diff",
    __doc__,
    "jobs.runs.difference:difference",
    argument("first", metavar="RUN", help="run directory, local or a URI (s3://, gs://)"),
    argument("second", metavar="RUN", help="another one"),
    argument("--by", metavar="COLUMN,COLUMN", default="", help="group by these columns of the second run"),
    argument("--rows", type=number, metavar="N", default=20, help="changed texts to list; 20"),
    argument("--html", metavar="FILE", help="draw a page of what changed, side by side"),
)

if __name__ == "__main__":
    sys.exit(main())
