"""`dray publish RUN DEST`: put a run on the hub or into a folder, as a dataset with a card.

DEST is hf://datasets/OWNER/NAME (a private dataset is made unless it is there; --public makes a public one), or
.../NAME@BRANCH (made, without files, unless it is there), or a folder, local or a URI (s3://, gs://). There come
data/DIGEST/part-00000.parquet and on (as dray compact writes them; DIGEST is that of their content), report.json and
report.html if the run has them, in dray/ what it takes to audit it (--with-input adds the input files), and last
README.md, the card. It says which files are the data, and what decides the texts: models, seed, hashes. Older data of
the run are removed after it, so that the data that the card names are always whole: datasets.load_dataset, which goes
by the card, reads no row twice and misses none. On the hub all is one commit.

The run is verified first. Files that are there already with the same content are not uploaded again, so that an
interrupted command goes on where it was. Keys and tokens in a column or in the run's configuration are refused by the
name of the field; --allow-secrets-in FIELD says that they are meant. Exit code 0, 1 if it was not published, 2 if it
cannot begin, 3 if it was interrupted.
"""

import argparse
import sys

from jobs.commands import argument, on_run, refusals, size
from jobs.runs.publication import publish
from pipeline.export.destinations import Folder, destination
from pipeline.run.directory import RunDirectory


@on_run(
    "publish",
    __doc__,
    argument(
        "destination",
        metavar="DEST",
        help="hf://datasets/OWNER/NAME or .../NAME@BRANCH, or a folder, local or a URI",
    ),
    argument("--title", help="title of the card; the name of the run directory unless given"),
    argument("--license", help="license of the texts, as the hub names it, such as apache-2.0"),
    argument("--public", action="store_true", help="make a dataset that does not exist on the hub public"),
    argument("--partial", action="store_true", help="publish a run with missing units as it is"),
    argument("--with-input", action="store_true", help="publish the input files, too: an audit needs them"),
    argument(
        "--dry-run", action="store_true", help="write the files to the staging folder, and say what would be uploaded"
    ),
    argument(
        "--allow-secrets-in",
        metavar="FIELD",
        action="append",
        default=[],
        help="publish this column or field although it looks as if it held secrets; may be given again",
    ),
    argument("--bytes-per-file", metavar="SIZE", type=size, default=size("512MB"), help="size of a file; 512MB"),
    argument(
        "--staging",
        metavar="FOLDER",
        help="where a folder for all files is made, and deleted at the end; unless given TMPDIR",
    ),
    once_interrupted="the same command uploads what is missing",
)
def main(run_directory: RunDirectory, options: argparse.Namespace) -> int:
    """Publish the run, and return the exit code."""
    with refusals():
        place = destination(options.destination, is_private=not options.public)
        if isinstance(place, Folder):
            run_directory.refuse_inside(place.location, "publish")
    publish(run_directory, place, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
