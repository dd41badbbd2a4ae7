"""How many draft tokens each row gets in a round: as many as pay, down to none.

A round costs what its draft steps, its target forward and the engine's own work cost (`CostTable`, measured on the
device itself). What it yields is estimated from what stood before (`Acceptance`) and from what a lookup offers (the
drafter's `outlook`); `best_lengths` weighs the one against the other.

What a row gets depends on committed tokens, on how much was accepted and on measured times, never on drafted tokens
that fell and never on noise to come: the choice is lossless under rejection verification, too (a policy that drops a
drafted token because of that token is not). What a lookup offers is a point mass fixed by committed tokens, so weighing
its tokens is weighing committed tokens.
"""

from collections.abc import Sequence as Seq
from typing import Protocol

import numpy as np

from decoding.acceptance import Acceptance
from decoding.cost_table import CostTable
from decoding.draft_lengths import DraftPlan, Floats, best_lengths
from decoding.sequence import Sequence

_PROBE_EVERY = 64  # rounds without a source after which it drafts one token again, to see whether it pays by now
_PROBE_ROWS = 8  # one row in so many probes the draft model, which must first catch up with what it missed
_OVERHEAD_WEIGHT = 0.05  # of a round in the running estimate of the engine's own time
_OVERHEAD_RANGE = (0.25, 4.0)  # against the time measured at start-up: what is outside is somebody else's work


class Schedule(Protocol):
    """Decides draft lengths before a round and learns after it."""

    ceiling: int  # no row drafts more

    def lengths(self, sequences: Seq[Sequence]) -> tuple[int, ...]:
        """The most each row may draft: a round adds one token to what it accepts."""
        return tuple(min(self.ceiling, sequence.num_remaining_tokens - 1) for sequence in sequences)

    def plan(self, sequences: Seq[Sequence], outlook: Seq[Seq[float]] | None, has_model: bool) -> DraftPlan:
        """What these rows draft, where a lookup has this outlook (`Drafter.outlook`)."""
        ...

    def observe(
        self,
        sequences: Seq[Sequence],
        looks_up: Seq[bool],
        num_drafted: Seq[int],
        num_accepted: Seq[int],
        seconds: float,
    ) -> None:
        """Learn from a round: what each row drafted and from where, how much of it stood, how long it took."""
        ...


class FixedSchedule(Schedule):
    """The same draft length for every row, for comparison."""

    def __init__(self, num_speculative_tokens: int) -> None:
        """The length."""
        self.ceiling = num_speculative_tokens
        self._acceptance = Acceptance(num_speculative_tokens)

    def plan(self, sequences: Seq[Sequence], outlook: Seq[Seq[float]] | None, has_model: bool) -> DraftPlan:
        """The full length; a row with both sources takes the one with more expected tokens."""
        lengths = self.lengths(sequences)
        if outlook is None or not has_model:
            return DraftPlan(lengths, (outlook is not None,) * len(lengths))
        by_model_BK = self._acceptance.survival_BK(sequences)
        looks_up = tuple(
            sum(offered) > by_model_K[:length].sum()
            for offered, by_model_K, length in zip(outlook, by_model_BK, lengths, strict=True)
        )
        return DraftPlan(lengths, looks_up)

    def observe(
        self,
        sequences: Seq[Sequence],
        looks_up: Seq[bool],
        num_drafted: Seq[int],
        num_accepted: Seq[int],
        seconds: float,
    ) -> None:
        """Learn what the draft model is worth."""
        self._acceptance.observe(sequences, *_by_model(looks_up, num_drafted, num_accepted))


class AdaptiveSchedule(Schedule):
    """Draft lengths that maximize the expected tokens a second of the whole batch."""

    def __init__(self, costs: CostTable, num_speculative_tokens: int) -> None:
        """Never more than `num_speculative_tokens` a row."""
        self._costs = costs
        self.ceiling = num_speculative_tokens
        self._acceptance = Acceptance(num_speculative_tokens)
        self._overhead = 1.0  # the engine's own time, as a multiple of what was measured at start-up
        self._rounds_without = {"model": 0, "lookup": 0}
        self._expected_seconds = (0.0, 0.0)  # of this round: forwards, and the engine's own work as at start-up

    def plan(self, sequences: Seq[Sequence], outlook: Seq[Seq[float]] | None, has_model: bool) -> DraftPlan:
        """The best lengths for these rows now."""
        limits = self.lengths(sequences)
        by_model_BK = _cut(self._acceptance.survival_BK(sequences), limits) if has_model else None
        by_lookup_BK = None if outlook is None else _cut(_rectangle(outlook, self.ceiling), limits)
        if not any(limits) or (by_model_BK is None and by_lookup_BK is None):
            return self._expect(DraftPlan((0,) * len(limits), (False,) * len(limits)))
        plan = best_lengths(by_model_BK, by_lookup_BK, self._costs, len(limits), self._overhead)
        return self._expect(self._probe(plan, sequences, by_model_BK, by_lookup_BK))

    def observe(
        self,
        sequences: Seq[Sequence],
        looks_up: Seq[bool],
        num_drafted: Seq[int],
        num_accepted: Seq[int],
        seconds: float,
    ) -> None:
        """Learn what the draft model is worth, and how long the engine's own work takes with these parameters."""
        by_model, accepted = _by_model(looks_up, num_drafted, num_accepted)
        self._acceptance.observe(sequences, by_model, accepted)
        forwards, overhead = self._expected_seconds
        if overhead > 0:
            low, high = _OVERHEAD_RANGE
            found = min(max((seconds - forwards) / overhead, low), high)
            self._overhead += _OVERHEAD_WEIGHT * (found - self._overhead)

    def _expect(self, plan: DraftPlan) -> DraftPlan:
        """The plan, with how long its forwards and the engine's own work should take remembered."""
        num_rows, num_tokens = len(plan.lengths), len(plan.lengths) + sum(plan.lengths)
        by_model, _ = _by_model(plan.looks_up, plan.lengths, plan.lengths)
        steps, num_steppers = max(by_model), sum(n > 0 for n in by_model)
        forwards = self._costs.target_seconds(num_tokens)
        forwards += steps * self._costs.draft_seconds(num_steppers) if steps else 0.0
        positions = num_rows * (1 + max(plan.lengths)) + steps * num_steppers
        self._expected_seconds = (
            forwards,
            self._costs.round_seconds + positions * self._costs.position_seconds,
        )
        return plan

    def _probe(
        self, plan: DraftPlan, sequences: Seq[Sequence], by_model_BK: Floats | None, by_lookup_BK: Floats | None
    ) -> DraftPlan:
        """The plan, with one token from a source that nobody drew on for long."""
        lengths, looks_up = list(plan.lengths), list(plan.looks_up)
        for name, survival_BK in (("lookup", by_lookup_BK), ("model", by_model_BK)):
            is_lookup = name == "lookup"
            if any(n and up is is_lookup for n, up in zip(plan.lengths, plan.looks_up, strict=True)):
                self._rounds_without[name] = 0
                continue
            self._rounds_without[name] += 1
            if survival_BK is None or self._rounds_without[name] % _PROBE_EVERY:
                continue
            rows = [row for row, survival_K in enumerate(survival_BK) if survival_K[0] > 0]
            if not is_lookup:  # the shortest have missed the least
                rows = sorted(rows, key=lambda row: len(sequences[row]))[: -(-len(sequences) // _PROBE_ROWS)]
            for row in rows:
                lengths[row], looks_up[row] = 1, is_lookup
        return DraftPlan(tuple(lengths), tuple(looks_up), plan.speed)


def _by_model(looks_up: Seq[bool], num_drafted: Seq[int], num_accepted: Seq[int]) -> tuple[list[int], list[int]]:
    """Both counts, of the rows that drafted with the model."""
    drafted = [0 if up else n for up, n in zip(looks_up, num_drafted, strict=True)]
    accepted = [0 if up else n for up, n in zip(looks_up, num_accepted, strict=True)]
    return drafted, accepted


def _rectangle(outlook: Seq[Seq[float]], width: int) -> Floats:
    return np.array([[*offered, *[0.0] * (width - len(offered))] for offered in outlook])


def _cut(survival_BK: Floats, limits: Seq[int]) -> Floats:
    """0 where a row may not draft."""
    return np.where(np.arange(survival_BK.shape[1]) < np.array(limits)[:, None], survival_BK, 0.0)
