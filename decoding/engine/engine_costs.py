"""The engine's own time a round, measured: what is left when the target's forward takes none.

A lane over a stand-in for the target, which hands out the same logits at once, spends its rounds on everything else:
distributions, noise, verification, counting. Its sampling is plain (temperature 1); `AdaptiveSchedule` corrects the
figures by what rounds take with the parameters that are really used.
"""

import time
from collections import deque
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import cast

import torch

from decoding.cache.kv_cache import KVCache
from decoding.drafters.base import Drafter
from decoding.drafters.ngram import point_masses
from decoding.engine.lane import Lane
from decoding.network.target import LocalTarget, Target
from decoding.pace.cost_table import CostTable
from decoding.pace.schedule import FixedSchedule
from decoding.sampling.rows import Rows
from decoding.sampling.verify import Draft, Verification
from decoding.sampling_params import SamplingParams
from decoding.sequence import Sequence

_REPEATS = 6
_MAX_MODEL_LEN = 64


def with_overhead(
    costs: CostTable,
    target: Target,
    drafter: Drafter | None,
    num_slots: int,
    num_draft_tokens: int,
    verification: Verification,
) -> CostTable:
    """Add the engine's own time to the table, for a lane of `num_slots` rows under `verification`.

    `drafter` is one with a draft model, if that is what will draft, and is spent afterwards: what a draft step takes
    beside its forward goes into the table's draft times.
    """
    stand_in = cast(Target, _Instant(target, num_slots, 1 + num_draft_tokens))

    def measure(drafter: Drafter) -> float:
        waiting: deque[Sequence] = deque()
        lane = Lane(
            stand_in,
            drafter,
            FixedSchedule(num_draft_tokens),
            waiting,
            num_slots=num_slots,
            max_model_len=_MAX_MODEL_LEN,
            max_prefill_tokens=num_slots,  # all prompts at once: each has one token
            verification=verification,
        )
        return _seconds(lane, waiting, num_slots)

    plain, widest = (measure(_Zeros(n)) for n in (0, num_draft_tokens))
    position_seconds = max(0.0, widest - plain) / (num_slots * num_draft_tokens)
    round_seconds = max(0.0, plain - num_slots * position_seconds)
    step_seconds = 0.0
    if drafter is not None:
        drafted = measure(drafter)
        known = costs.draft_seconds(num_slots) + num_slots * position_seconds  # the table has these already
        step_seconds = max(0.0, (drafted - widest) / num_draft_tokens - known)
    return replace(
        costs,
        draft=tuple((num_rows, seconds + step_seconds) for num_rows, seconds in costs.draft),
        round_seconds=round_seconds,
        position_seconds=position_seconds,
    )


def _seconds(lane: Lane, waiting: deque[Sequence], num_slots: int) -> float:
    """Return the least time of a round with all slots in use: other work on the machine only ever adds."""
    params = SamplingParams(max_tokens=_MAX_MODEL_LEN - 4, ignore_eos=True)  # no round drafts less for its end
    waiting.extend(Sequence.create([0], params, row=row) for row in range(num_slots))
    times = []
    for _ in range(_REPEATS + 1):
        started = time.perf_counter()
        lane.advance()
        times.append(time.perf_counter() - started)
    lane.clear()
    return min(times[1:])  # the first one admits


class _Zeros(Drafter):
    """Drafts token 0 as often as it is told to."""

    def __init__(self, num_draft_tokens: int) -> None:
        self._num_draft_tokens = num_draft_tokens

    def propose(self, rows: Rows) -> Draft:
        return point_masses([[0] * self._num_draft_tokens for _ in rows.sequences], rows.sampling.keys_B.device)


class _Instant(LocalTarget):
    """What an engine asks of its target, in no time."""

    def __init__(self, model: Target, num_slots: int, num_positions: int) -> None:
        self.cache = KVCache(num_slots, num_positions)  # nobody ever writes it
        self.packs_rows = True
        self.device, self.dtype, self.vocab_size = model.device, model.dtype, model.vocab_size
        self.eos_token_ids: frozenset[int] = frozenset()
        generator = torch.Generator().manual_seed(0)
        self._logits_BJV = torch.empty(
            num_slots, num_positions, model.vocab_size, device=model.device, dtype=model.dtype
        )
        for logits_JV in self._logits_BJV:
            logits_JV.copy_(4 * torch.randn(logits_JV.shape, generator=generator))
        self._logits_BJV[..., 0] = -100.0  # what is drafted falls: every round of every row commits one token

    def allocate(self, num_slots: int, num_positions: int) -> None:
        return None

    def prefill(self, slots: Seq[int], token_ids: Seq[Seq[int]], starts: Seq[int] | None = None) -> None:
        return None

    def forward(self, starts: Seq[int], token_ids_BT: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        return self._logits_BJV[: len(starts), : token_ids_BT.shape[1]]

    def plain_logits(self, token_ids: Seq[int]) -> torch.Tensor:
        return self._logits_BJV[0, 0]
