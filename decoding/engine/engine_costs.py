"""The engine's own time a round, measured: what is left when the target's forward takes none.

An engine over a stand-in for the target, which hands out the same logits at once, spends its rounds on everything else:
distributions, noise, verification, counting. Its sampling is plain (temperature 1); `AdaptiveSchedule` corrects the
figures by what rounds take with the parameters that are really used.
"""

import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import torch

from decoding.cost_table import CostTable
from decoding.drafters.base import Drafter
from decoding.drafters.ngram import point_masses
from decoding.kv_cache import KVCache
from decoding.rows import Rows
from decoding.sampling_params import SamplingParams
from decoding.sequence import Sequence
from decoding.target import LocalTarget, Target
from decoding.verify import Draft

if TYPE_CHECKING:
    from decoding.engine import Engine

_REPEATS = 6


def with_overhead(
    costs: CostTable,
    target: Target,
    drafter: Drafter | None,
    num_slots: int,
    num_draft_tokens: int,
    make_engine: Callable[..., "Engine"],
) -> CostTable:
    """The table with the engine's own time; `make_engine(target, drafter)` makes an engine with the same options.

    `drafter` is one with a draft model, if that is what will draft, and is spent afterwards: what a draft step takes
    beside its forward goes into the table's draft times.
    """
    stand_in = cast(Target, _Instant(target, num_slots, 1 + num_draft_tokens))
    plain, widest = (_seconds(make_engine(stand_in, _Zeros(n)), num_slots) for n in (0, num_draft_tokens))
    position_seconds = max(0.0, widest - plain) / (num_slots * num_draft_tokens)
    round_seconds = max(0.0, plain - num_slots * position_seconds)
    step_seconds = 0.0
    if drafter is not None:
        drafted = _seconds(make_engine(stand_in, drafter), num_slots)
        known = costs.draft_seconds(num_slots) + num_slots * position_seconds  # the table has these already
        step_seconds = max(0.0, (drafted - widest) / num_draft_tokens - known)
    return replace(
        costs,
        draft=tuple((num_rows, seconds + step_seconds) for num_rows, seconds in costs.draft),
        round_seconds=round_seconds,
        position_seconds=position_seconds,
    )


def _seconds(engine: "Engine", num_slots: int) -> float:
    """The least time of a round with all slots in use: other work on the machine only ever adds."""
    params = SamplingParams(max_tokens=60, ignore_eos=True)  # so many that no round drafts less for its end
    engine.submit([Sequence.create([0], params, row=row) for row in range(num_slots)])
    times = []
    for _ in range(_REPEATS + 1):
        started = time.perf_counter()
        engine.step()
        times.append(time.perf_counter() - started)
    engine.clear()
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
