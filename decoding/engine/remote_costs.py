"""What it costs to have drafts made in another process, measured through the drafter that will ask for them."""

import logging
import time
from collections.abc import Sequence as Seq
from dataclasses import replace

import torch

from decoding.drafters.base import Drafter
from decoding.engine.costs import ascending, row_counts
from decoding.pace.cost_table import CostTable
from decoding.sampling.rows import Rows, sampling_batch
from decoding.sampling_params import SamplingParams
from decoding.sequence import Sequence

_REPEATS = 4
_PROMPT = (0,) * 16
_ASSUMED_SHARE = 1 / 8  # of a target forward's time, for a draft step that nobody could measure
_log = logging.getLogger(__name__)


def with_remote_drafts(
    costs: CostTable, drafter: Drafter, device: torch.device, num_slots: int, num_draft_tokens: int
) -> CostTable:
    """The table with the times of the drafter's drafts, which are made while other rows are verified.

    Where the drafter cannot be reached a step is assumed to take an eighth of a target forward. The drafter is spent
    afterwards. As in `measure_costs`, each time is the least of a few.
    """
    counts, most = row_counts(num_slots), num_draft_tokens
    lengths = sorted({1, most})
    seconds = {(num_rows, length): float("inf") for num_rows in counts for length in lengths}
    sequences = tuple(Sequence.create(_PROMPT, SamplingParams(), row=row) for row in range(num_slots))
    drafter.admit(range(num_slots), sequences)
    for _ in range(1 + _REPEATS):  # the first time, each row is sent whole
        for num_rows, length in seconds:
            took = _seconds(drafter, sequences[:num_rows], length, device)
            seconds[num_rows, length] = min(seconds[num_rows, length], took)
    if not all(took < float("inf") for took in seconds.values()):
        _log.warning("drafts could not be timed; a step is taken to cost %g of a target forward", _ASSUMED_SHARE)
        assumed = [(num_rows, _ASSUMED_SHARE * costs.target_seconds(num_rows)) for num_rows in counts]
        return replace(costs, draft=ascending(assumed), is_overlapped=True)
    steps = [(n, max(seconds[n, most] - seconds[n, 1], 0.0) / max(most - 1, 1)) for n in counts]
    trip = max(seconds[n, 1] - step for n, step in steps)
    return replace(costs, draft=ascending(steps), is_overlapped=True, trip_seconds=max(trip, 0.0))


def _seconds(drafter: Drafter, sequences: Seq[Sequence], length: int, device: torch.device) -> float:
    """Of a draft of so many tokens for each of these rows; infinity if none came."""
    sampling = sampling_batch(tuple(sequences), frozenset(), device)
    rows = Rows(tuple(sequences), sampling, (length,) * len(sequences), "coupled", (False,) * len(sequences))
    started = time.perf_counter()
    drafter.ask(rows)
    draft = drafter.propose(rows)
    took = time.perf_counter() - started
    return took if draft.token_ids_BK.shape[1] == length else float("inf")
