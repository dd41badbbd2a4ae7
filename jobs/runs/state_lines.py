"""The state of a run as lines for a terminal."""

from collections.abc import Iterator

from jobs.driver.progress import format_seconds
from pipeline.run.progress.state import RunState


def lines_of(name: str, state: RunState) -> Iterator[str]:
    """Yield the state as lines for a reader."""
    yield f"{name}: {state.state}"
    share = state.num_committed_rows / state.num_rows if state.num_rows else 1.0
    yield (
        f"  committed: {state.num_committed_units:,} of {state.num_units:,} units, {state.num_committed_rows:,} of "
        f"{state.num_rows:,} rows ({share:.1%})"
    )
    if state.rows_per_second is not None and state.state == "running":
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
    if state.state == "stopped":
        is_whole = state.num_committed_units == state.num_units
        what = "checks it, and completes it or says why not" if is_whole else "goes on with it"
        yield f"  next:      the same dray generate {what}"
    if holder is not None and state.state == "running" and holder.draft_work:
        yield f"  drafts:    {holder.draft_work}"
    for cause in holder.failed_places if holder is not None and state.state == "running" else ():
        yield f"  at rest:   {cause}"
