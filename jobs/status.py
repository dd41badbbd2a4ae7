"""`dray status RUN`: what a run is doing now, by its directory alone, without Ray.

Units, rows, rows a second and the time left (by the newest commits), engines, failed rows, and the driver at work. The
exit code is 0 if the run is complete, 3 if it is running, 4 if it is stopped and incomplete, 2 if there is no run, 1 if
it cannot be read.
"""

import argparse
import json
import sys
from dataclasses import asdict

from rich.console import Console

from jobs.commands import argument, on_run
from jobs.runs.state_lines import lines_of
from pipeline.run.directory import RunDirectory
from pipeline.run.progress.state import State, read_state

_EXIT_CODES: dict[State, int] = {"complete": 0, "running": 3, "stopped": 4}


@on_run("status", __doc__, argument("--json", action="store_true", help="print one JSON object"))
def main(run_directory: RunDirectory, options: argparse.Namespace) -> int:
    """Print the state, and return the exit code that it has."""
    state, console = read_state(run_directory), Console()
    if options.json:
        print(json.dumps(asdict(state), indent=2))
    for line in [] if options.json else lines_of(run_directory.location.name, state):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    return _EXIT_CODES[state.state]


if __name__ == "__main__":
    sys.exit(main())
