"""Counts of rows, tokens and rounds. Counts add; rates are computed only here.

A rate cannot be added, averaged or compared across batches without knowing its denominator, so nothing in Dray stores
one: rows, footers, receipts and reports hold counts, and a rate is a property of a sum of counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import reduce
from itertools import zip_longest
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True)
class Counts:
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

    def __add__(self, other: Counts) -> Counts:
        sums = {name: getattr(self, name) + getattr(other, name) for name in _NUMBERS}
        per_position = _add_ragged(self.accepted_per_position, other.accepted_per_position)
        return Counts(**sums, accepted_per_position=per_position)

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
        return asdict(self) | {"accepted_per_position": list(self.accepted_per_position)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Counts:
        """Read the counts that `to_dict` wrote."""
        return cls(**{**values, "accepted_per_position": tuple(values["accepted_per_position"])})


_NUMBERS = tuple(field.name for field in fields(Counts) if field.name != "accepted_per_position")


def _add_ragged(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip_longest(left, right, fillvalue=0))


_PER_SAMPLE = ["num_cached_tokens", "num_output_tokens", "num_rounds", "num_draft_tokens", "num_accepted_tokens"]
COUNTED_COLUMNS = ["sample", "num_prompt_tokens", *_PER_SAMPLE, "accepted_per_position"]


def count_generations(generations: pa.Table, num_errors: int) -> Counts:
    """Count a table of generation rows and `num_errors` rows that failed beside them."""
    generations = generations.select(COUNTED_COLUMNS)  # a filter does not know every type of a carried column
    once_per_prompt = generations.filter(pc.field("sample") == 0)
    accepted = (tuple(positions or ()) for positions in generations["accepted_per_position"].to_pylist())

    def total(table: pa.Table, column: str) -> int:
        return int(pc.sum(table[column], min_count=0).as_py())

    return Counts(
        num_rows=once_per_prompt.num_rows + num_errors,
        num_generations=generations.num_rows,
        num_errors=num_errors,
        num_prompt_tokens=total(once_per_prompt, "num_prompt_tokens"),
        **{column: total(generations, column) for column in _PER_SAMPLE},
        accepted_per_position=reduce(_add_ragged, accepted, ()),
    )
