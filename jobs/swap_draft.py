"""`dray swap-draft RUN DRAFT`: let a run go on with another draft of the same architecture.

No token changes. The engines of a run that is under way take the draft within seconds, between two rounds; a run that
is continued later begins with it. If it drafts much worse than the one before, the engines go back to that one.
"""

import argparse
import sys
from pathlib import Path

from jobs.commands import argument, on_run, refusals
from jobs.runs.draft_check import check_draft
from pipeline.run.directory import RunDirectory
from pipeline.run.progress.draft_versions import DraftVersions
from pipeline.run.progress.lease import Holder


@on_run(
    "swap_draft",
    __doc__,
    argument("draft", metavar="DRAFT", help="folder of the draft, which every node of the run must see"),
)
def main(run_directory: RunDirectory, options: argparse.Namespace) -> int:
    """Offer the draft to the run; return 0, or 2 if there is no such run, or the draft cannot take part in it."""
    from decoding.checkpoint.supported import model_folder  # here, since it needs torch, which --help does not

    with refusals():
        draft = str(Path(model_folder(options.draft)).absolute())
        check_draft(run_directory, draft)
        version = DraftVersions(run_directory.location).offer(draft)
        holder = Holder.from_bytes(run_directory.location.child("_LEASE").read_if_there())
    print(f"{draft} is version {version.number} of the draft of {run_directory.location.name}.")
    if holder is None:
        print("No driver works on the run now; the next `dray generate` of it begins with this version.")
    else:
        print(
            f"The engines of the driver on {holder.host} take it within seconds of each other, between two rounds "
            "(a run without Ray: when it goes on with Ray); "
            "`dray report RUN --by draft_version` compares the versions."
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
