"""Counts of rows, tokens and rounds, and scores of texts. They add; rates are computed only here.

A rate cannot be added, averaged or compared across batches without knowing its denominator, so nothing in Dray stores
one: rows, footers, receipts and reports hold counts, and a rate is a property of a sum of counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import compress, zip_longest
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc


class Sums:
    """Mixin of dataclasses that add field by field, tuples of them place by place."""

    def __add__(self, other: Self) -> Self:
        make: Callable[..., Self] = type(self)
        return make(*map(_sum, vars(self).values(), vars(other).values()))


def _sum(left: Any, right: Any) -> Any:
    is_ragged = isinstance(left, tuple)
    return tuple(a + b for a, b in zip_longest(left, right, fillvalue=0)) if is_ragged else left + right


@dataclass(frozen=True)
class Counts(Sums):
    """The counts of one unit, one run or one second: `sum(parts, Counts())` is the whole.

    `num_rows` are input rows, generated or failed; `num_errors` the failed ones; `num_generations` the
    samples. `num_prompt_tokens` counts a prompt once however many samples were drawn from it; `num_cached_tokens`
    counts, over all samples, the prompt tokens whose keys and values were copied from another row, not computed.
    `accepted_per_position[k]` is the number of rounds in which draft token k (from 0) was accepted.
    """

    num_rows: int = 0
    num_generations: int = 0
    num_errors: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    num_rounds: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    accepted_per_position: tuple[int, ...] = ()

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / drafted tokens; None when nothing was drafted."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else None

    @property
    def mean_acceptance_length(self) -> float | None:
        """Tokens that a round commits on average, 1 + accepted / rounds; None when there were no rounds."""
        return 1 + self.num_accepted_tokens / self.num_rounds if self.num_rounds else None

    def to_dict(self) -> dict[str, Any]:
        """Return the counts (no rates) as a JSON-ready dict."""
        return {**vars(self), "accepted_per_position": list(self.accepted_per_position)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Counts:
        """Read the counts that `to_dict` wrote."""
        return cls(**{**values, "accepted_per_position": tuple(values["accepted_per_position"])})


@dataclass(frozen=True)
class Scores(Sums):
    """Sums over scored texts."""

    num_texts: int = 0
    num_tokens: int = 0
    logprob: float = 0.0
    num_greedy: int = 0
    num_best: int = 0

    @property
    def perplexity(self) -> float | None:
        """exp of the mean negative log-probability of a token; None without tokens."""
        return math.exp(min(700.0, -self.logprob / self.num_tokens)) if self.num_tokens else None

    def to_dict(self) -> dict[str, float | int | None]:
        """Return the sums and the perplexity, as report.json has them."""
        return {**vars(self), "perplexity": self.perplexity}


@dataclass(frozen=True)
class Reuse(Sums):
    """Sums over generations, of which some had an earlier text as a prediction (`run.reuse`)."""

    num_unchanged: int = 0
    num_changed: int = 0
    num_new: int = 0
    num_output_tokens: int = 0
    num_reused_tokens: int = 0

    def __str__(self) -> str:
        """Return it in words."""
        share = self.num_reused_tokens / max(1, self.num_output_tokens)
        texts = f"{self.num_unchanged:,} unchanged, {self.num_changed:,} changed, {self.num_new:,} new"
        return f"{texts}; {share:.1%} of the tokens"


@dataclass(frozen=True)
class Tries(Sums):
    """Sums over the texts of a run with `run.validate`."""

    num_texts: int = 0
    num_tries: int = 0  # of these texts
    num_at_first: int = 0  # texts that passed at the first try

    def __str__(self) -> str:
        """Return it in words."""
        return f"{self.num_tries:,} for {self.num_texts:,} texts, {self.num_at_first:,} valid at the first"


_PER_SAMPLE = ["num_cached_tokens", "num_output_tokens", "num_rounds", "num_draft_tokens", "num_accepted_tokens"]
COUNTED_COLUMNS = ["sample", "num_prompt_tokens", *_PER_SAMPLE, "accepted_per_position"]
REUSED_COLUMNS = ["num_earlier_tokens", "num_unchanged_tokens", "num_reused_tokens", "num_output_tokens"]
SCORED_COLUMNS = ["num_output_tokens", "logprob", "is_greedy", "is_best"]


def count_generations(generations: pa.Table, num_errors: int = 0) -> Counts:
    """Count a table of generation rows and `num_errors` rows that failed beside them."""
    # As lists: of the few rows of a part, Arrow's own sums take several times as long.
    columns = {name: generations[name].to_pylist() for name in COUNTED_COLUMNS}
    is_first = [sample == 0 for sample in columns["sample"]]  # each prompt counts once
    accepted = (positions or () for positions in columns["accepted_per_position"])
    return Counts(
        num_rows=sum(is_first) + num_errors,
        num_generations=generations.num_rows,
        num_errors=num_errors,
        num_prompt_tokens=sum(filter(None, compress(columns["num_prompt_tokens"], is_first))),
        **{name: sum(filter(None, columns[name])) for name in _PER_SAMPLE},
        accepted_per_position=tuple(map(sum, zip_longest(*accepted, fillvalue=0))),
    )


def count_reuse(generations: pa.Table) -> Reuse:
    """Count a table of generation rows that have the columns of `run.reuse`."""
    earlier, same, reused, written = (generations[name].to_pylist() for name in REUSED_COLUMNS)
    is_new = [number is None for number in earlier]
    is_same = [one == other == number for one, other, number in zip(earlier, same, written, strict=True)]
    num_new, num_same = sum(is_new), sum(is_same)
    num_changed = len(earlier) - num_new - num_same
    return Reuse(num_same, num_changed, num_new, sum(filter(None, written)), sum(filter(None, reused)))


def count_tries(generations: pa.Table) -> Tries:
    """Count a table of generation rows of a run with `run.validate`."""
    tries = [number or 0 for number in generations["num_tries"].to_pylist()]
    return Tries(len(tries), sum(tries), tries.count(1))


def count_scores(scored: pa.Table) -> Scores:
    """Count a table of rows of texts that were scored."""
    return Scores(scored.num_rows, *(_total(scored, column) for column in SCORED_COLUMNS))


def _total(table: pa.Table, column: str) -> Any:
    return pc.sum(table[column], min_count=0).as_py()
