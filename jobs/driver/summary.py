"""The table that ends a run, and report.json."""

from typing import Any

from rich.console import Console
from rich.table import Table

from actors.engines.backend import Exactness, exactness_found, why_inexact
from decoding.choices import TEXT_DEPENDS_ON_DRAFT, TEXT_IS_THE_TARGETS
from jobs.driver.progress import format_length, format_rate, format_seconds
from jobs.driver.tables import scores_table
from pipeline.counts import SCORED_COLUMNS, Scores, count_scores
from pipeline.run.check import CheckReport
from pipeline.run.directory import RunDirectory
from pipeline.run.tally import tally


def make_report(run_directory: RunDirectory, check: CheckReport, seconds: float) -> dict[str, Any]:
    """Return the content of report.json: counts of the whole run, their rates, and what verification found."""
    counts = check.counts
    return {
        "complete": check.is_complete,
        "num_units": check.num_units,
        "num_committed_units": check.num_committed_units,
        "counts": counts.to_dict(),
        "acceptance_rate": counts.acceptance_rate,
        "mean_acceptance_length": counts.mean_acceptance_length,
        **({"scores": _scores(run_directory).to_dict()} if run_directory.has_scores else {}),
        "seconds_of_last_command": round(seconds, 3),
        "exact": (exact := exactness_of(run_directory, check)),
        "why_inexact": why_inexact(_verification(run_directory)) if exact == "no" else "",
        "engines": check.engines,
        "problems": check.problems,
        "notes": check.notes,
        "versions": run_directory.run.get("versions", {}),
    }


def _scores(run_directory: RunDirectory) -> Scores:
    return sum(tally(run_directory, (), SCORED_COLUMNS, count_scores).values(), Scores())


def exactness_of(run_directory: RunDirectory, check: CheckReport) -> Exactness:
    """Return what may be said of the texts of a run, by its configuration and by the engines that wrote its parts."""
    run, identity, verification = run_directory.run, run_directory.run["identity"], _verification(run_directory)
    was_proved = (
        verification in TEXT_IS_THE_TARGETS and identity.get("dtype") == "float32"
    )  # of runs begun before it was said
    return exactness_found(run.get("exact", "proved" if was_proved else "no"), verification, check.engines)


def print_why_inexact(run_directory: RunDirectory) -> None:
    """Print what the texts of a run without coupled verification are; nothing for others."""
    if _verification(run_directory) in TEXT_DEPENDS_ON_DRAFT:
        print(f"exact: no; {why_inexact(_verification(run_directory))}")


def _verification(run_directory: RunDirectory) -> str:
    return str(run_directory.run["identity"].get("verification", ""))


def print_summary(run_directory: RunDirectory, check: CheckReport, num_new_tokens: int = 0, seconds: float = 0) -> None:
    """Print what the run holds, and what this command added to it, if anything."""
    if run_directory.has_scores:
        _print_scores(run_directory, check, num_new_tokens, seconds)
        return
    counts = check.counts
    table = Table(title=f"Corpus in {run_directory.location.name}", show_header=False, title_justify="left")
    table.add_column(justify="left", style="bold")
    table.add_column(justify="right")
    table.add_row("rows", f"{counts.num_rows:,}")
    table.add_row("generations", f"{counts.num_generations:,}")
    table.add_row("errors", f"{counts.num_errors:,}")
    table.add_row("prompt tokens", f"{counts.num_prompt_tokens:,}")
    table.add_row("prompt tokens copied, over all samples", f"{counts.num_cached_tokens:,}")
    table.add_row("output tokens", f"{counts.num_output_tokens:,}")
    table.add_row("rounds (target forwards a row)", f"{counts.num_rounds:,}")
    table.add_row("drafted / accepted tokens", f"{counts.num_draft_tokens:,} / {counts.num_accepted_tokens:,}")
    table.add_row("acceptance rate", format_rate(counts.acceptance_rate))
    table.add_row("mean acceptance length", format_length(counts.mean_acceptance_length))
    table.add_row("exact", exactness_of(run_directory, check))
    if num_new_tokens:
        table.add_row("this command", f"{num_new_tokens:,} tokens, {format_seconds(seconds)}")
    Console().print(table)
    print_why_inexact(run_directory)


def _print_scores(run_directory: RunDirectory, check: CheckReport, num_new_tokens: int, seconds: float) -> None:
    counts, console = check.counts, Console()
    console.print(scores_table(run_directory, ()))
    exact = exactness_of(run_directory, check)
    line = f"{counts.num_rows:,} rows, {counts.num_errors:,} of them errors; {counts.num_prompt_tokens:,} prompt tokens"
    console.print(f"{line}, {counts.num_cached_tokens:,} of them copied; exact: {exact}", highlight=False)
    if num_new_tokens:
        console.print(f"this command: {num_new_tokens:,} scored tokens, {format_seconds(seconds)}", highlight=False)
