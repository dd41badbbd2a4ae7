"""`python -m jobs.status RUN`: what a run is doing now, read from its directory on any machine, without Ray.

Units, rows, rows a second and the time left (by the newest commits), engines, failed rows, and the driver at work. The
exit code is 0 if the run is complete, 3 if it is running, 4 if it is stopped and incomplete, 2 if there is no run, 1 if
it cannot be read.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict

from rich.console import Console

from jobs.commands import argument, on_run
from jobs.driver.progress import format_seconds
from pipeline.run.directory import RunDirectory
from pipeline.run.progress.state import RunState, State, read_state

_EXIT_CODES: dict[State, int] = {"complete": 0, "running": 3, "stopped": 4}


@on_run("status", __doc__, argument("--json", action="store_true", help="print one JSON object"), run="RUN")
def main(run_directory: RunDirectory, options: argparse.Namespace) -> int:
    """Print the state, and return the exit code that it has."""
    state, console = read_state(run_directory), Console()
    if options.json:
        print(json.dumps(asdict(state), indent=2))
    for line in [] if options.json else lines_of(run_directory.location.name, state):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    return _EXIT_CODES[state.state]


def lines_of(name: str, state: RunState) -> Iterator[str]:
    """Yield the state as lines for a reader."""
    yield f"{name}: {state.state}"
    share = state.num_committed_rows / state.num_rows if state.num_rows else 1.0
    yield (
        f"  committed: {state.num_committed_units:,} of {state.num_units:,} units, {state.num_committed_rows:,} of "
        f"{state.num_rows:,} rows ({share:.1%})"
    )
    if state.rows_per_second is not None:
        left = "" if state.seconds_left is None else f", about {format_seconds(state.seconds_left)} left"
        yield f"  pace:      {state.rows_per_second:,.2f} rows/s by the newest commits{left}"
    if state.newest_commit is not None:
        yield f"  newest:    committed at {state.newest_commit}"
    rows = "" if state.num_error_rows is None else f"{state.num_error_rows:,} rows failed, "
    yield f"  errors:    {rows}in {state.num_units_with_errors:,} units"
    driver, holder = "none at work", state.holder
    if holder is not None and state.state == "running":
        driver = f"{holder}; engines up: {'not known yet' if holder.num_engines is None else holder.num_engines}"
    elif holder is not None:
        driver += f"; the last one died or was cut off: {holder}"
    yield f"  driver:    {driver}"


if __name__ == "__main__":
    sys.exit(main())
