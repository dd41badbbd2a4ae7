"""How long a run would have taken without speculation, as far as it can be known from what the run recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.counts import Counts


@dataclass(frozen=True)
class Estimate:
    """Times the time of this run. `is_bound`: it would have taken that at most, as no cost was measured."""

    factor: float
    is_bound: bool
    how: str


def time_without_speculation(counts: Counts, round_seconds: Sequence[tuple[float, ...]]) -> Estimate | None:
    """Return the estimate; None where nothing was drafted.

    Without speculation each token takes a round. Where engines measured what rounds of each draft length cost, those
    costs decide; else the number of rounds bounds it, as if drafting and verifying several tokens cost nothing.
    """
    if not counts.num_draft_tokens or not counts.num_rounds:
        return None
    saved = counts.num_output_tokens / counts.num_rounds
    if not round_seconds:
        return Estimate(
            saved,
            is_bound=True,
            how=f"Each token would have taken a round of the target: {counts.num_output_tokens:,} rounds instead of "
            f"{counts.num_rounds:,}. This run did not measure what a round with a draft costs more than one without, "
            "as its draft length was fixed; so this is the most that it can have been, not what it was.",
        )
    mean_draft = counts.num_draft_tokens / counts.num_rounds
    ratios = [costs[0] / _at(costs, mean_draft) for costs in round_seconds]
    ratio = sum(ratios) / len(ratios)
    return Estimate(
        saved * ratio,
        is_bound=False,
        how=f"Each token would have taken a round of the target: {counts.num_output_tokens:,} rounds instead of "
        f"{counts.num_rounds:,}. By what the engines measured at their start, with all slots in use, a round without a "
        f"draft takes {ratio:.2f} times as long as one with the mean draft of {mean_draft:.2f} tokens. Reading prompts "
        "is left out, and rounds of fewer rows cost otherwise, so take it as a rough figure.",
    )


def _at(costs: Sequence[float], length: float) -> float:
    """Return the cost of a round with a mean draft length, between the two whole ones beside it."""
    low = min(int(length), len(costs) - 1)
    high = min(low + 1, len(costs) - 1)
    return costs[low] + (costs[high] - costs[low]) * (length - low)
