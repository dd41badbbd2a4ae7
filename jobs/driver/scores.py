"""The table of a run of scores: texts, tokens, log-probabilities and perplexity, by columns of its output."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from rich.table import Table
from rich.text import Text

from pipeline.inputs.arrow_values import shown_rows
from pipeline.run.directory import RunDirectory
from pipeline.text.visible import visible

_COLUMNS = ("num_output_tokens", "logprob", "is_greedy", "is_best")


@dataclass(frozen=True)
class Scores:
    """Sums over scored texts."""

    num_texts: int = 0
    num_tokens: int = 0
    logprob: float = 0.0
    num_greedy: int = 0
    num_best: int = 0

    def __add__(self, other: "Scores") -> "Scores":
        return Scores(*(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))

    def to_dict(self) -> dict[str, float | int | None]:
        """Return the sums and the perplexity, as report.json has them."""
        return {**vars(self), "perplexity": self.perplexity}

    @property
    def perplexity(self) -> float | None:
        """exp of the mean negative log-probability of a token; None without tokens."""
        return math.exp(min(700.0, -self.logprob / self.num_tokens)) if self.num_tokens else None


def scores_by(run_directory: RunDirectory, columns: Sequence[str]) -> Iterator[tuple[tuple[str, ...], Scores]]:
    """Yield the sums of each combination of values of these columns, or of the whole run without one.

    One part is read at a time. Raises ValueError for a column that the output does not have.
    """
    groups: dict[tuple[str, ...], Scores] = {}
    location = run_directory.location.child("data")
    parts = ds.dataset(location.path, filesystem=location.filesystem, format="parquet")
    if parts.files and (missing := [name for name in columns if name not in parts.schema.names]):
        raise ValueError(f"the output has no column {missing[0]!r}; it has {', '.join(parts.schema.names)}")
    for fragment in parts.get_fragments():
        table: pa.Table = fragment.to_table(columns=[*dict.fromkeys([*columns, *_COLUMNS])])
        for group, row in zip(shown_rows(table, columns), table.select(_COLUMNS).to_pylist(), strict=True):
            groups[group] = groups.get(group, Scores()) + _scores_of(row)
    yield from sorted(groups.items())


def total_scores(run_directory: RunDirectory) -> Scores:
    """Return the sums over the whole run."""
    return sum((scores for _, scores in scores_by(run_directory, ())), Scores())


def _scores_of(row: dict[str, Any]) -> Scores:
    return Scores(1, row["num_output_tokens"], row["logprob"], row["is_greedy"], row["is_best"])


def scores_table(run_directory: RunDirectory, columns: Sequence[str]) -> Table:
    """Return the table for a terminal. Raises ValueError as `scores_by` does."""
    table = Table(title=f"Scores in {run_directory.location.name}", title_justify="left")
    for name in columns:
        table.add_column(name, no_wrap=True)
    for heading in ("texts", "tokens", "log-probability a text", "perplexity", "greedy", "best"):
        table.add_column(heading, justify="right", no_wrap=True)
    groups = list(scores_by(run_directory, columns))
    total = sum((scores for _, scores in groups), Scores())
    for values, scores in groups if columns else []:
        table.add_row(*(Text(visible(value)) for value in values), *_cells(scores))
    table.add_row(*["all", *[""] * (len(columns) - 1)][: len(columns)], *_cells(total), style="bold")
    return table


def _cells(scores: Scores) -> list[str]:
    perplexity, number = scores.perplexity, max(1, scores.num_texts)
    return [
        f"{scores.num_texts:,}",
        f"{scores.num_tokens:,}",
        f"{scores.logprob / number:.3f}",
        "-" if perplexity is None else f"{perplexity:.3f}",
        f"{scores.num_greedy / number:.3f}",
        f"{scores.num_best / number:.3f}",
    ]
