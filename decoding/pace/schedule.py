"""Schedule: how many draft tokens each row gets in a round, as many as pay, down to none.

A round costs the time of its draft steps, its target forward and the engine's overhead (`CostTable`, measured on the
device itself). Its yield is estimated from past acceptance (`Acceptance`) and from what a lookup offers (the drafter's
`lookup_survival`). `best_lengths` weighs one against the other.

A row's draft length depends on committed tokens, on how much was accepted and on measured times, never on rejected
tokens and never on noise to come. So the choice is lossless under rejection verification, too (a policy that drops a
drafted token because of that token is not). What a lookup offers is a point mass fixed by the tokens before it, so a
choice that depends on its tokens depends on those only.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence as Seq
from dataclasses import replace

import numpy as np

from decoding.pace.acceptance import Acceptance, Mean, RecentDrafts
from decoding.pace.cost_table import CostTable, Overhead
from decoding.pace.draft_lengths import DraftPlan, Floats, cut, extension_limits, repaid_lengths, with_extensions
from decoding.pace.trials import Round, Trials
from decoding.sequence import Sequence

_PROBE_EVERY = 64  # rounds without a source after which it drafts one token again, to see whether it pays by now
_PAUSE = 7  # rounds that are not planned after a plan found that no draft pays
# One row in this many probes: the draft model must read the tokens it missed first, and a probe by lookup replaces a
# better plan.
_PROBE_ROWS = 8
_MIN_CHANCE = 0.05  # least chance of acceptance of an extension's token, however cheap it is


class Schedule(ABC):
    """Decides draft lengths before a round and learns after it."""

    costs: CostTable | None = None  # as measured at the start; None: the lengths do not depend on costs

    def __init__(self, ceiling: int) -> None:
        """Plan drafts of at most `ceiling` tokens a row."""
        self.ceiling = ceiling
        self._acceptance = Acceptance(ceiling)
        self.recent_drafts = RecentDrafts()  # of the draft model
        self._may_rest = True
        self._has_features = False
        self._trials, self._foresight = Trials(), Trials()  # which rest where a schedule lets them observe rounds

    def forget(self) -> None:
        """Forget what was learned of the draft model: it has other weights now."""
        self._acceptance = Acceptance(self.ceiling)
        self.recent_drafts.clear()

    def repays_reading(self, num_tokens: int, num_left: int) -> bool:
        """Tell whether drafts of `num_left` tokens save the time in which a draft model reads `num_tokens` before."""
        return True

    def lengths(self, sequences: Seq[Sequence]) -> tuple[int, ...]:
        """Return the longest draft that each row may have and could keep."""
        ceiling = self.ceiling
        most = [sequence.max_draft_tokens for sequence in sequences]
        return tuple([limit if limit < ceiling else ceiling for limit in most])

    @property
    def rests(self) -> bool:
        """Whether the next round is done without the drafter: no plan and no lookup."""
        return self._may_rest and self._trials.is_resting

    @property
    def foresees(self) -> bool:
        """Whether grammars are asked what they foresee: what they force is drafted, and to ask takes time, too.

        They always are where rounds wait for something else (`never_rest`).
        """
        return not (self._may_rest and self._foresight.is_resting)

    @property
    def keeps_features(self) -> bool:
        """Whether features go on in a rest, since it may soon be over: a row that misses some never drafts again."""
        return self._trials.keeps_features

    def heed_features(self) -> None:
        """Learn that the drafter reads the target's features, and that they take time."""
        self._has_features = True
        self._trials = Trials(has_features=True)

    @abstractmethod
    def plan(
        self, sequences: Seq[Sequence], lookup_survival: Seq[Seq[float]] | None, has_model: bool, unread: Seq[int] = ()
    ) -> DraftPlan:
        """Plan the draft of these rows, given what a drafter says of them (`lookup_survival` and `num_unread`)."""

    def most_foreseen(self, plan: DraftPlan, lengths: Seq[int]) -> int:
        """Return how many tokens a row should draft at most of those that its grammar foresees: `lengths` a row."""
        return self.ceiling

    def observe(
        self, plan: DraftPlan, sequences: Seq[Sequence], num_drafted: Seq[int], num_accepted: Seq[int], seconds: float
    ) -> None:
        """Learn from a round with this plan: tokens drafted and accepted by each row, and its time."""
        by_model, accepted_of_model = plan.of_model(num_drafted, num_accepted)
        self._acceptance.observe(sequences, by_model, accepted_of_model)
        self.recent_drafts.observe(sum(by_model), sum(accepted_of_model))

    def observe_rest(self, num_rows: int, num_tokens: int, seconds: float) -> None:
        """Learn from a round without the drafter, in which the rows wrote this many tokens together."""
        raise NotImplementedError("this schedule never rests")

    def observe_foresight(self, num_rows: int, num_tokens: int, seconds: float) -> None:  # noqa: B027 - may be ignored
        """Learn from a round of rows with grammars, whether or not these were asked what they foresee."""

    def never_rest(self) -> None:
        """Learn that rounds wait for something else: what they take is not what the drafter costs."""
        self._may_rest = False


class FixedSchedule(Schedule):
    """The same draft length for every row, or as much of it as a row can keep; for comparison."""

    def plan(
        self, sequences: Seq[Sequence], lookup_survival: Seq[Seq[float]] | None, has_model: bool, unread: Seq[int] = ()
    ) -> DraftPlan:
        """Plan the full length; a row with both sources takes the one with more expected tokens."""
        lengths = self.lengths(sequences)
        uses_lookup = (lookup_survival is not None,) * len(lengths)
        if lookup_survival is not None and has_model:
            by_model_BK = self._acceptance.survival_BK(sequences)
            uses_lookup = tuple(
                sum(offered) > by_model_K[:length].sum()
                for offered, by_model_K, length in zip(lookup_survival, by_model_BK, lengths, strict=True)
            )
        return DraftPlan(lengths, uses_lookup)


class AdaptiveSchedule(Schedule):
    """Draft lengths that maximize the expected tokens a second of the whole batch."""

    def __init__(self, costs: CostTable, num_speculative_tokens: int) -> None:
        """Weigh by `costs`; a row never drafts more than `num_speculative_tokens`."""
        super().__init__(num_speculative_tokens)
        self.costs: CostTable = costs
        max_tokens = costs.target[-1][0]  # about all slots at the ceiling; the two ends only have to be far apart
        self._num_slots = max(1, max_tokens // (1 + num_speculative_tokens))
        self._overhead = Overhead(costs, self._num_slots, max(2, max_tokens))
        self._begin()

    def forget(self) -> None:
        """Forget what was learned of the draft model, a rest among it; times stay."""
        super().forget()
        self._begin()

    def _begin(self) -> None:
        # Of extensions that were reached: accepted tokens, less what the time of all of them would have earned.
        self._extension_gain = Mean(first_guess=0.0, weight=16.0, decay=0.998)
        # The share of rows that fill a column of verification that extensions added.
        self._extension_share = Mean(first_guess=0.5, weight=16.0, decay=0.99)
        survival_BK = self._acceptance.survival_BK([None] * self._num_slots)
        # The best plan that was found last, at first for new rows in about all slots.
        self._best = repaid_lengths(survival_BK, None, self._overhead.costs, [1] * self._num_slots)
        self._rounds_without = {"model": 0, "lookup": 0}
        # The next rounds that draft nothing and are not planned, if they have at least as many rows as the last one.
        self._num_paused, self._min_paused_rows = 0, 0
        self._trials = Trials(has_features=self._has_features)
        self._foresight = Trials(clearly=math.inf)  # a drafter may make rounds fast, and not what grammars foresee
        # Both learn of the rounds in which the other one tries nothing.
        self._tries_drafter = self._tries_foresight = False  # in the round that is under way, or that is observed

    def repays_reading(self, num_tokens: int, num_left: int) -> bool:
        return 0 < self._best.saved_seconds * num_left >= self.costs.reading_seconds(num_tokens)

    def plan(
        self, sequences: Seq[Sequence], lookup_survival: Seq[Seq[float]] | None, has_model: bool, unread: Seq[int] = ()
    ) -> DraftPlan:
        """Plan the best lengths for these rows now."""
        if lookup_survival is None and self._num_paused and len(sequences) >= self._min_paused_rows:
            self._num_paused -= 1
            self._rounds_without["model"] += 1
            return DraftPlan.nothing(len(sequences))
        limits, costs = self.lengths(sequences), self._overhead.costs
        survival_BK = self._acceptance.survival_BK(sequences)
        filled = [[*offered, *[0.0] * (self.ceiling - len(offered))] for offered in lookup_survival or ()]
        by_lookup_BK = None if lookup_survival is None else cut(np.array(filled), limits)
        by_model_BK = cut(survival_BK, limits) if has_model else None
        if by_model_BK is not None and by_lookup_BK is not None:
            by_model_BK = with_extensions(by_model_BK, max(self._extension_gain.value, 0.0))
        if any(limits) and (has_model or lookup_survival is not None):
            left = [sequence.num_remaining_tokens for sequence in sequences]
            self._best = repaid_lengths(by_model_BK, by_lookup_BK, costs, left, unread)
            plan = self._probe(self._best, sequences, by_model_BK, by_lookup_BK)
            until_probe = _PROBE_EVERY - 1 - self._rounds_without["model"]
            may_pause = lookup_survival is None and not any(plan.lengths)
            self._num_paused, self._min_paused_rows = max(0, min(_PAUSE, until_probe)) if may_pause else 0, len(limits)
        else:
            plan = DraftPlan.nothing(len(limits))
        if any(plan.lengths) and has_model:
            plan = replace(plan, min_survival=self._min_survival(plan, costs))
            if lookup_survival is not None:
                plan = replace(plan, extension_limits=extension_limits(plan, limits, survival_BK))
        return plan

    def most_foreseen(self, plan: DraftPlan, lengths: Seq[int]) -> int:
        """Return the number with which the batch writes the most tokens a second, if all of them are accepted."""
        costs, num_rows, planned = self._overhead.costs, len(lengths), max(plan.lengths, default=0)
        best, best_speed = 0, 0.0
        for most in range(min(max(lengths), self.ceiling) + 1):
            tokens = num_rows + sum(min(most, length) for length in lengths)
            width = 1 + max(most, planned)
            seconds = costs.round_seconds + num_rows * width * costs.position_seconds + costs.target_seconds(tokens)
            if tokens / seconds > best_speed:
                best, best_speed = most, tokens / seconds
        return best

    def observe(
        self, plan: DraftPlan, sequences: Seq[Sequence], num_drafted: Seq[int], num_accepted: Seq[int], seconds: float
    ) -> None:
        """Learn how often the sources are right, and the overhead with these sampling parameters."""
        super().observe(plan, sequences, num_drafted, num_accepted, seconds)
        by_model, _ = plan.of_model(num_drafted, num_accepted)
        self._observe_extensions(plan, num_drafted, num_accepted)
        num_rows, steps, num_steppers = len(num_drafted), max(by_model), sum(n > 0 for n in by_model)
        forwards = self.costs.target_seconds(num_rows + sum(num_drafted))
        drafting = self.costs.drafting_seconds(steps, num_steppers)
        num_positions = num_rows * (1 + max(num_drafted))
        if self.costs.is_overlapped:  # `seconds` are those of this process
            drafting = 0.0
        else:
            num_positions += steps * num_steppers
        if not self.costs.is_chain:  # else a wait for its answer cannot be told from work
            self._overhead.observe(num_positions, seconds - forwards - drafting)
        # Rows that cannot draft, since the drafter has missed a part of them, or do not, do not show what it is worth.
        num_unable = self._best.num_put_off + sum(
            not n and (length > 0 or sequence.num_speculative_tokens == 0)
            for length, n, sequence in zip(plan.lengths, num_drafted, sequences, strict=True)
        )
        if 2 * num_unable <= num_rows:
            self._observe_speed(num_rows, num_rows + sum(num_accepted), seconds)
        else:
            self._tries_drafter = False

    def observe_rest(self, num_rows: int, num_tokens: int, seconds: float) -> None:
        self._observe_speed(num_rows, num_tokens, seconds)

    def observe_foresight(self, num_rows: int, num_tokens: int, seconds: float) -> None:
        if self._may_rest and not self._tries_drafter:
            self._tries_foresight = self._foresight.is_trial
            if self._foresight.observe(self._round(num_rows, num_tokens, seconds), num_rows):
                self._trials.forget_rounds()
            self._tries_foresight |= self._foresight.is_trial  # which may begin with the next round, or have ended

    def _observe_speed(self, num_rows: int, num_tokens: int, seconds: float) -> None:
        tries_foresight, self._tries_foresight = self._tries_foresight, False
        if self._may_rest and not tries_foresight:
            if self._trials.observe(self._round(num_rows, num_tokens, seconds), num_rows):
                self._foresight.forget_rounds()
            self._tries_drafter = self._trials.is_trial

    def _round(self, num_rows: int, num_tokens: int, seconds: float) -> Round:
        costs = self.costs
        plain = costs.round_seconds + num_rows * costs.position_seconds + costs.target_seconds(num_rows)
        return Round(num_tokens / num_rows, max(seconds, 1e-9) / plain)

    def _observe_extensions(self, plan: DraftPlan, num_drafted: Seq[int], num_accepted: Seq[int]) -> None:
        num_extension_tokens = 0
        for extension, planned, drafted, accepted in zip(
            plan.extension_limits, plan.lengths, num_drafted, num_accepted, strict=False
        ):
            if extension.max_tokens:
                num_extension_tokens += max(drafted - planned, 0)
                if accepted >= planned:
                    self._extension_gain.observe(accepted - planned - extension.min_survival * (drafted - planned))
        if num_extension_tokens:
            added_width = max(num_drafted) - max(plan.lengths)
            self._extension_share.observe(min(1.0, num_extension_tokens / (len(num_drafted) * max(added_width, 1))))

    def _min_survival(self, plan: DraftPlan, costs: CostTable) -> float:
        """Return the least chance of acceptance with which a token earns the time that it adds to verification."""
        num_rows, num_tokens = len(plan.lengths), len(plan.lengths) + sum(plan.lengths)
        more = costs.target_seconds(num_tokens + num_rows) - costs.target_seconds(num_tokens)
        column_share = costs.position_seconds / self._extension_share.value
        return max(plan.speed * (more / num_rows + column_share), _MIN_CHANCE)

    def _probe(
        self, plan: DraftPlan, sequences: Seq[Sequence], by_model_BK: Floats | None, by_lookup_BK: Floats | None
    ) -> DraftPlan:
        """Add one token to the plan from a source that was not used for long."""
        lengths, uses_lookup = list(plan.lengths), list(plan.uses_lookup)
        for name, survival_BK in (("lookup", by_lookup_BK), ("model", by_model_BK)):
            is_lookup = name == "lookup"
            if any(n and up is is_lookup for n, up in zip(plan.lengths, plan.uses_lookup, strict=True)):
                self._rounds_without[name] = 0
                continue
            self._rounds_without[name] += 1
            if survival_BK is None or self._rounds_without[name] < _PROBE_EVERY:
                continue
            self._rounds_without[name] = 0
            rows = [row for row, survival_K in enumerate(survival_BK) if survival_K[0] > 0]
            if not is_lookup:  # the draft model has missed the fewest tokens of the shortest rows
                rows = sorted(rows, key=lambda row: len(sequences[row]))[: -(-len(sequences) // _PROBE_ROWS)]
            for row in rows:
                lengths[row], uses_lookup[row] = 1, is_lookup
        return DraftPlan(tuple(lengths), tuple(uses_lookup), plan.speed)
