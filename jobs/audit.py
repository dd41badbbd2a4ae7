"""`dray audit RUN`: find out whether a run is what its target writes.

Each row of the sample is written again as the run wrote it, with its recorded text as the draft: that takes a fraction
of the time. Tokens, texts, ends and all else that must come out again are compared. All parts are verified, and
what run.json says of models, tokenizer, template, sampling and seed is compared with what is here.

Exit code 0, 1 if something differs, 2 if it cannot be audited.
"""

import sys

from jobs.commands import WRITES_AGAIN, argument, number, with_options


def rows(text: str) -> int | None:
    """Read a number of rows, or None for all."""
    return None if text == "all" else number(text)


main = with_options(
    "audit",
    __doc__,
    "jobs.runs.audit:audit",
    argument("run", metavar="RUN", help="run directory or publication, local or a URI (s3://, gs://, hf://datasets/)"),
    argument("--rows", type=rows, default=200, metavar="N|all", help="rows to write again; 200"),
    argument("--seed", type=int, metavar="N", help="which rows; unless given others each time"),
    argument("--partial", action="store_true", help="audit a run with missing units as it is"),
    *WRITES_AGAIN,
)

if __name__ == "__main__":
    sys.exit(main())
