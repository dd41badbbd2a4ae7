"""What is said of a run at its end: tables of what it adds up to, some of its texts, and report.json."""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from actors.engines.backend import Exactness, exactness_found, why_inexact
from decoding.choices import TEXT_DEPENDS_ON_DRAFT, TEXT_IS_THE_TARGETS
from jobs.config.run import RunSettings
from jobs.driver.progress import format_seconds
from jobs.names import tell
from jobs.report_page.numbers import format_length, format_rate
from jobs.report_page.texts import samples, text_to_show
from pipeline.counts import (
    COUNTED_COLUMNS,
    REUSED_COLUMNS,
    SCORED_COLUMNS,
    Counts,
    Reuse,
    Scores,
    Tries,
    count_generations,
    count_reuse,
    count_scores,
    count_tries,
)
from pipeline.inputs.values import visible
from pipeline.run.check import CheckReport
from pipeline.run.dead_letters import Wanted, find_dead_letters
from pipeline.run.directory import RunDirectory
from pipeline.run.progress.draft_choice import DraftChoice, DraftTurns
from pipeline.run.unit_rows import tally

_NUM_ON_A_TERMINAL = 3
_BY_POSITION = "accepted, by draft position"  # the column that may wrap


def make_report(run_directory: RunDirectory, check: CheckReport, seconds: float) -> dict[str, Any]:
    """Return the content of report.json: counts of the whole run, their rates, and what verification found."""
    counts, choice = check.counts, DraftChoice.of(run_directory.location)
    turns = DraftTurns.of(run_directory.location)
    of_columns: dict[str, Any] = {}  # that not every run has
    if run_directory.has("scores"):
        groups = tally(run_directory, (), SCORED_COLUMNS, count_scores)
        of_columns["scores"] = sum(groups.values(), Scores()).to_dict()
    if (reuse := _reuse_of(run_directory)) is not None:
        of_columns["reuse"] = vars(reuse)
    if (tries := _tries_of(run_directory)) is not None:
        of_columns["validation"] = {**vars(tries[0]), "num_rows_never_valid": tries[1]}
    return {
        "complete": check.is_complete,
        "num_units": check.num_units,
        "num_committed_units": check.num_committed_units,
        "counts": counts.to_dict(),
        "acceptance_rate": counts.acceptance_rate,
        "mean_acceptance_length": counts.mean_acceptance_length,
        **of_columns,
        "seconds_of_last_command": round(seconds, 3),
        "exact": (exact := exactness_of(run_directory, check)),
        "why_inexact": why_inexact(_verification(run_directory)) if exact == "no" else "",
        "fallbacks": fallbacks(check),
        "engines": check.engines,
        **({} if choice is None else {"draft_choice": asdict(choice)}),
        **({} if turns is None else {"draft_turns": asdict(turns)}),
        "problems": check.problems,
        "notes": check.notes,
        "versions": run_directory.run.get("versions", {}),
    }


def _reuse_of(run_directory: RunDirectory) -> Reuse | None:
    """Return what became of the earlier texts of a run; None if it reuses none."""
    if not run_directory.has("reuse"):
        return None
    return sum(tally(run_directory, (), REUSED_COLUMNS, count_reuse).values(), Reuse())


def _tries_of(run_directory: RunDirectory) -> tuple[Tries, int] | None:
    """Return the tries of a run, and the rows of which none passed; None if it checks no texts."""
    if not run_directory.has("tries"):
        return None
    failed = find_dead_letters(run_directory, Wanted()).num_rows
    never = sum(number for (stage, kind), number in failed.items() if (stage, kind) == ("validate", "NotValid"))
    return sum(tally(run_directory, (), ["num_tries"], count_tries).values(), Tries()), never


def exactness_of(run_directory: RunDirectory, check: CheckReport) -> Exactness:
    """Return what may be said of the texts of a run, by its configuration and by the engines that wrote its parts."""
    run, identity, verification = run_directory.run, run_directory.run["identity"], _verification(run_directory)
    was_proved = (
        verification in TEXT_IS_THE_TARGETS and identity.get("dtype") == "float32"
    )  # of runs begun before it was said
    return exactness_found(run.get("exact", "proved" if was_proved else "no"), verification, check.engines)


def fallbacks(check: CheckReport) -> list[str]:
    """Return what engines of a run ran otherwise than it was to run, and slower, each once."""
    return sorted({str(engine["fallback"]) for engine in check.engines if engine.get("fallback")})


def print_fallbacks(check: CheckReport) -> None:
    """Print which models ran slower than they were to, if any did."""
    for why in fallbacks(check):
        tell(f"slower than it should be: {why} (engine.fused: required refuses that)", sys.stdout)


def print_why_inexact(run_directory: RunDirectory) -> None:
    """Print what the texts of a run without coupled verification are; nothing for others."""
    if _verification(run_directory) in TEXT_DEPENDS_ON_DRAFT:
        tell(f"exact: no; {why_inexact(_verification(run_directory))}", sys.stdout)


def _verification(run_directory: RunDirectory) -> str:
    return str(run_directory.run["identity"].get("verification", ""))


def print_summary(run_directory: RunDirectory, check: CheckReport, num_new_tokens: int = 0, seconds: float = 0) -> None:
    """Print what the run holds, and what this command added to it, if anything."""
    if run_directory.has("scores"):
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
    table.add_row("prompt tokens taken from the cache", f"{counts.num_cached_tokens:,}")
    table.add_row("output tokens", f"{counts.num_output_tokens:,}")
    table.add_row("rounds (each one pass of the target)", f"{counts.num_rounds:,}")
    table.add_row("drafted / accepted tokens", f"{counts.num_draft_tokens:,} / {counts.num_accepted_tokens:,}")
    table.add_row("acceptance rate", format_rate(counts.acceptance_rate))
    table.add_row("mean acceptance length", format_length(counts.mean_acceptance_length))
    if (reuse := _reuse_of(run_directory)) is not None:
        table.add_row("earlier texts, and tokens from them", str(reuse))
    if (tries := _tries_of(run_directory)) is not None:
        table.add_row("tries", f"{tries[0]}; {tries[1]:,} rows never")
    table.add_row("exact: as the target alone writes", exactness_of(run_directory, check))
    if num_new_tokens:
        table.add_row(
            "this command, with loading",
            f"{num_new_tokens:,} tokens, {format_seconds(seconds)}, {num_new_tokens / seconds:,.0f} tokens/s",
        )
    Console().print(table)
    if (turns := DraftTurns.of(run_directory.location)) is not None:
        Console(soft_wrap=True).print(f"drafts in turn: {turns}", highlight=False, markup=False)
    print_why_inexact(run_directory)
    print_fallbacks(check)


def _print_scores(run_directory: RunDirectory, check: CheckReport, num_new_tokens: int, seconds: float) -> None:
    counts, console = check.counts, Console()
    console.print(tally_table(run_directory, ()))
    exact = exactness_of(run_directory, check)
    line = f"{counts.num_rows:,} rows, {counts.num_errors:,} of them errors; {counts.num_prompt_tokens:,} prompt tokens"
    console.print(f"{line}, {counts.num_cached_tokens:,} of them copied; exact: {exact}", highlight=False)
    if num_new_tokens:
        console.print(f"this command: {num_new_tokens:,} scored tokens, {format_seconds(seconds)}", highlight=False)


def tally_table(run_directory: RunDirectory, columns: Sequence[str]) -> Table:
    """Return the acceptance in a run, or its scores, by groups of rows and in total. Raises as `tally` does."""
    has_scores = run_directory.has("scores")
    counted: Any = COUNTED_COLUMNS, count_generations, Counts(), _acceptance_cells
    read, count, nothing, cells = (SCORED_COLUMNS, count_scores, Scores(), _score_cells) if has_scores else counted
    groups = tally(run_directory, columns, read, count)
    total = cells(sum(groups.values(), nothing))
    headings = [  # so that no number is cut off
        Column(heading) if heading == _BY_POSITION else Column(heading, justify="right", no_wrap=True)
        for heading in total
    ]
    labels = [Column(name, no_wrap=True) for name in columns or ([] if has_scores else [""])]
    title = f"{'Scores' if has_scores else 'Acceptance'} in {run_directory.location.name}"
    table = Table(*labels, *headings, title=title, title_justify="left")
    for values, found in groups.items() if columns or not has_scores else ():
        table.add_row(*(Text(visible(value)) for value in values or ("run",)), *cells(found).values())
    if columns or has_scores:
        table.add_row(*["all", *[""] * (len(columns) - 1)][: len(columns)], *total.values(), style="bold")
    return table


def _acceptance_cells(counts: Counts) -> dict[str, str]:
    rounds = max(counts.num_rounds, 1)
    by_position = " ".join(f"{accepted / rounds:.2f}" for accepted in counts.accepted_per_position)
    return {
        "generations": f"{counts.num_generations:,}",
        "tokens": f"{counts.num_output_tokens:,}",
        "rate": format_rate(counts.acceptance_rate),
        "length": format_length(counts.mean_acceptance_length),
        _BY_POSITION: by_position or "-",
    }


def _score_cells(scores: Scores) -> dict[str, str]:
    number = max(1, scores.num_texts)
    return {
        "texts": f"{scores.num_texts:,}",
        "tokens": f"{scores.num_tokens:,}",
        "log-probability a text": f"{scores.logprob / number:.3f}",
        "perplexity": format_rate(scores.perplexity),
        "greedy": f"{scores.num_greedy / number:.3f}",
        "best": f"{scores.num_best / number:.3f}",
    }


def print_ending(run_directory: RunDirectory, settings: RunSettings) -> None:
    """Print some texts of a run, none unless asked for where the output is no terminal, and the path of its report."""
    console = Console()
    asked = settings.show_texts
    num_wanted = asked if asked is not None else _NUM_ON_A_TERMINAL * console.is_terminal
    try:
        for sample in [] if run_directory.has("scores") else samples(run_directory, num_wanted):
            console.print(text_to_show(sample))
    except (ValueError, OSError) as error:  # the run was verified, and is complete
        print(f"note: its texts cannot be shown: {error}", file=sys.stderr)
    places = map(run_directory.location.child, ("report.html", "report.json"))  # the page, else the figures
    if (report := next((place.name for place in places if place.exists()), None)) is not None:
        print(f"report: {report}")
