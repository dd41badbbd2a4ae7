"""`dray verify RUN`: prove that each row of a run is there, exactly once. Exit code 0, or 1 with the reasons."""

import argparse
import sys

from jobs.commands import argument, on_run
from jobs.driver.summary import print_summary
from jobs.names import tell
from pipeline.run.check import check_run, quarantine
from pipeline.run.directory import RunDirectory
from pipeline.run.fingerprint import content_hash
from pipeline.run.progress.lease import hold_lease


@on_run(
    "verify",
    __doc__,
    argument("--hash", action="store_true", help="also print the content hash of all generations"),
    argument(
        "--repair",
        action="store_true",
        help="move damaged and foreign files to quarantine/, so that dray generate redoes their units",
    ),
)
def main(run_directory: RunDirectory, options: argparse.Namespace) -> int:
    """Return 0 if every row is in data or errors exactly once and all counts agree, 1 if not, 2 if there is no run."""
    if options.repair:
        with hold_lease(run_directory):
            for name in quarantine(run_directory, check_run(run_directory).damaged):
                print(f"moved to {name} (why: {name}.json)")
            check = check_run(run_directory)  # of what is left
    else:
        check = check_run(run_directory)
    print_summary(run_directory, check)
    for note in check.notes:
        tell(f"note: {note}", sys.stdout)
    for problem in check.problems:
        tell(f"problem: {problem}", sys.stdout)
    if not check.is_complete:
        print(f"NOT COMPLETE: {len(check.problems)} problems, {check.num_committed_units} of {check.num_units} units")
        if check.damaged:
            print(f"{len(check.damaged)} files are damaged or foreign; --repair moves them to quarantine/")
        return 1
    if options.hash:
        print(f"content {content_hash(run_directory)}")
    print(f"OK: {check.num_units} units, {check.counts.num_rows} rows, each in data or in errors exactly once")
    return 0


if __name__ == "__main__":
    sys.exit(main())
