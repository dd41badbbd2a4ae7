"""Tables for a terminal of what a run adds up to, by columns of its output: acceptance, or the scores of texts."""

from collections.abc import Mapping, Sequence

from rich.table import Column, Table
from rich.text import Text

from jobs.driver.progress import format_length, format_rate
from pipeline.counts import COUNTED_COLUMNS, SCORED_COLUMNS, Counts, Scores, count_generations, count_scores
from pipeline.inputs.values import visible
from pipeline.run.directory import RunDirectory
from pipeline.run.tally import tally


def acceptance_table(run_directory: RunDirectory, columns: Sequence[str]) -> Table:
    """Return the acceptance in a run. Raises as `tally` does."""
    groups = tally(run_directory, columns, COUNTED_COLUMNS, count_generations)
    total = sum(groups.values(), Counts())
    lines = {values or ("run",): _acceptance_cells(counts) for values, counts in groups.items()}
    headings = [*_numbers("generations", "tokens", "rate", "length"), Column("stood, by draft position")]  # may wrap
    title = f"Acceptance in {run_directory.location.name}"
    return _table(title, columns or [""], headings, lines, _acceptance_cells(total) if columns else None)


def _acceptance_cells(counts: Counts) -> list[str]:
    """Return generations, tokens, acceptance rate, mean acceptance length and acceptance by draft position as text."""
    rounds = max(counts.num_rounds, 1)
    by_position = " ".join(f"{accepted / rounds:.2f}" for accepted in counts.accepted_per_position)
    return [
        f"{counts.num_generations:,}",
        f"{counts.num_output_tokens:,}",
        format_rate(counts.acceptance_rate),
        format_length(counts.mean_acceptance_length),
        by_position or "-",
    ]


def scores_table(run_directory: RunDirectory, columns: Sequence[str]) -> Table:
    """Return the scores of a run. Raises as `tally` does."""
    groups = tally(run_directory, columns, SCORED_COLUMNS, count_scores)
    lines = {values: _score_cells(scores) for values, scores in groups.items() if columns}
    headings = _numbers("texts", "tokens", "log-probability a text", "perplexity", "greedy", "best")
    title = f"Scores in {run_directory.location.name}"
    return _table(title, columns, headings, lines, _score_cells(sum(groups.values(), Scores())))


def _score_cells(scores: Scores) -> list[str]:
    perplexity, number = scores.perplexity, max(1, scores.num_texts)
    return [
        f"{scores.num_texts:,}",
        f"{scores.num_tokens:,}",
        f"{scores.logprob / number:.3f}",
        "-" if perplexity is None else f"{perplexity:.3f}",
        f"{scores.num_greedy / number:.3f}",
        f"{scores.num_best / number:.3f}",
    ]


def _numbers(*headings: str) -> list[Column]:
    return [Column(heading, justify="right", no_wrap=True) for heading in headings]  # so that no number is cut off


def _table(
    title: str,
    columns: Sequence[str],
    headings: Sequence[Column],
    lines: Mapping[tuple[str, ...], Sequence[str]],
    total: Sequence[str] | None,
) -> Table:
    """Return the table with a line for each group of rows, and the total below them."""
    table = Table(*(Column(name, no_wrap=True) for name in columns), *headings, title=title, title_justify="left")
    for values, cells in lines.items():
        table.add_row(*(Text(visible(value)) for value in values), *cells)
    if total is not None:
        table.add_row(*["all", *[""] * (len(columns) - 1)][: len(columns)], *total, style="bold")
    return table
