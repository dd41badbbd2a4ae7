"""AdaptiveSchedule: draft lengths that pay, by measured times and past acceptance."""

import math
from collections.abc import Sequence as Seq
from dataclasses import replace

import numpy as np

from decoding.pace.compared import Round
from decoding.pace.cost_table import CostTable, Overhead
from decoding.pace.draft_lengths import DraftPlan, Floats, best_lengths, cut, extension_limits, with_extensions
from decoding.pace.mean import Mean
from decoding.pace.schedule import Schedule
from decoding.pace.trials import Trials
from decoding.sequence import Sequence

_PROBE_EVERY = 64  # rounds without a source after which it drafts one token again, to see whether it pays by now
_PAUSE = 7  # rounds that are not planned after a plan found that no draft pays
_KEPT = 3  # rounds of the same rows that keep a plan of drafts: planning takes a tenth of a small model's round
# One row in this many probes: the draft model must read the tokens it missed first, and a probe by lookup replaces a
# better plan.
_PROBE_ROWS = 8
_OF_READING = 0.98  # is kept, with each row, of what is known of those before
_MIN_CHANCE = 0.05  # least chance of acceptance of an extension's token, however cheap it is
# Tokens of a row with a prediction in a round: all of them are right where a text is only written again.
MOST_PREDICTED = 64
_ROUND_TOKENS = 512  # and of all rows: more of them in a forward make a token no cheaper, and take memory for logits


class AdaptiveSchedule(Schedule):
    """Draft lengths that maximize the expected tokens a second of the whole batch."""

    def __init__(self, costs: CostTable, num_speculative_tokens: int, trials: Trials | None = None) -> None:
        """Weigh by `costs`; a row without a prediction never drafts more than `num_speculative_tokens`.

        Of several drafters each has a schedule of its own, and all share `trials`.
        """
        super().__init__(num_speculative_tokens)
        self._shared = trials
        self._most_predicted = MOST_PREDICTED
        self.costs: CostTable = costs
        self._plain_seconds: dict[int, float] = {}  # by rows: what a round without drafts takes, as `costs` have it
        max_tokens = costs.target[-1][0]  # about all slots at the ceiling; the two ends only have to be far apart
        self._overhead = Overhead(costs, max(1, max_tokens // (1 + num_speculative_tokens)), max(2, max_tokens))
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
        # Rows that come in a round. With drafts and in rest: the seconds that the drafter took to read prompts, and the
        # number of these prompts, which a lookup reads in rest too.
        self._num_newcomers = Mean(first_guess=0.0, weight=128.0, decay=0.996)
        self._reading = [(0.0, 0.0), (0.0, 0.0)]
        self._rounds_without = {"model": 0, "lookup": 0}
        # The next rounds that are not planned: where nothing pays, with at least as many rows; else with the same rows.
        self._num_kept, self._kept = 0, DraftPlan.nothing(0)
        self._kept_rows: Seq[Sequence] = ()
        self._kept_survival_BK: Floats = np.zeros((0, 0))
        self._trials = self._shared or Trials(self._trials.has_features)
        self._foresight = Trials(clearly=math.inf)  # a drafter may make rounds fast, and not what grammars foresee
        # Both learn of the rounds in which the other one tries nothing.
        self._tries_foresight = False  # in the round that is under way, or that is observed

    def lengths(self, sequences: Seq[Sequence]) -> tuple[int, ...]:
        lengths = super().lengths(sequences)
        if not any(sequence.prediction for sequence in sequences):
            return lengths
        most = max(self.ceiling, min(self._most_predicted, _ROUND_TOKENS // len(sequences) - 1))
        return tuple(
            min(most, sequence.max_draft_tokens) if sequence.prediction else length
            for sequence, length in zip(sequences, lengths, strict=True)
        )

    def heed_states(self) -> None:
        self._most_predicted = self.ceiling

    def would_draft(self, num_rows: int) -> bool:
        survival_BK = self._acceptance.survival_BK([None] * num_rows)
        return any(best_lengths(survival_BK, None, self._overhead.costs, num_rows).lengths)

    def plan(self, sequences: Seq[Sequence], lookup_survival: Seq[Seq[float]] | None, has_model: bool) -> DraftPlan:
        """Plan the best lengths for these rows now."""
        if self._num_kept and (kept := self._keep(sequences, lookup_survival, has_model)) is not None:
            self._num_kept -= 1
            return kept
        limits, costs = self.lengths(sequences), self._overhead.costs
        width = max(self.ceiling, *limits)
        survival_BK = self._acceptance.survival_BK(sequences)
        if width > self.ceiling:
            survival_BK = np.pad(survival_BK, ((0, 0), (0, width - self.ceiling)))
        by_lookup_BK = None
        if lookup_survival is not None:
            filled = [[*offered, *[0.0] * (width - len(offered))] for offered in lookup_survival]
            by_lookup_BK = cut(np.array(filled), limits)
        by_model_BK = cut(survival_BK, limits) if has_model else None
        if by_model_BK is not None and by_lookup_BK is not None:
            by_model_BK = with_extensions(by_model_BK, max(self._extension_gain.value, 0.0))
        if any(limits) and (has_model or lookup_survival is not None):
            best = best_lengths(by_model_BK, by_lookup_BK, costs, len(limits))
            plan = self._probe(best, sequences, by_model_BK, by_lookup_BK)
            until_probe = _PROBE_EVERY - 1 - self._rounds_without["model"]
            if not any(plan.lengths):
                self._num_kept = max(0, min(_PAUSE, until_probe))
            else:  # a lookup finds another text in the next round, and a probe takes one round
                self._num_kept = _KEPT if any(best.lengths) and not any(plan.uses_lookup) else 0
        else:
            plan, self._num_kept = DraftPlan.nothing(len(limits)), 0
        if any(plan.lengths) and has_model:
            plan = replace(plan, min_survival=self._min_survival(plan, costs))
            if lookup_survival is not None:
                plan = replace(plan, extension_limits=extension_limits(plan, limits, survival_BK))
        self._kept, self._kept_rows, self._kept_survival_BK = plan, sequences, survival_BK
        return plan

    def _keep(
        self, sequences: Seq[Sequence], lookup_survival: Seq[Seq[float]] | None, has_model: bool
    ) -> DraftPlan | None:
        """Return the last plan for one more round, or None if it is not for these rows.

        A row that finds more than the model would yield looks up.
        """
        if not any(self._kept.lengths):
            if len(sequences) < len(self._kept_rows) or any(lookup_survival or ()):
                return None
            self._rounds_without["model"] += 1
            return DraftPlan.nothing(len(sequences))
        limits = self.lengths(sequences)
        if sequences is not self._kept_rows or not has_model or max(limits) > self.ceiling:
            return None
        kept = replace(self._kept, lengths=tuple(map(min, self._kept.lengths, limits)))
        if lookup_survival is None:
            return kept
        by_model_B = [
            float(survival_K[:length].sum())
            for survival_K, length in zip(self._kept_survival_BK, kept.lengths, strict=True)
        ]
        found = [
            len(offered) if sum(offered) > by_model else 0
            for offered, by_model in zip(lookup_survival, by_model_B, strict=True)
        ]
        self._rounds_without["lookup"] = 0 if any(found) else self._rounds_without["lookup"] + 1
        kept = replace(kept, extension_limits=extension_limits(kept, limits, self._kept_survival_BK))
        return kept.replaced(found)

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
        costs = self.costs
        forwards = costs.target_seconds(num_rows + sum(num_drafted))
        drafting = costs.drafting_seconds(steps, num_steppers)
        num_positions = num_rows * (1 + max(num_drafted))
        if costs.is_overlapped:  # `seconds` are those of this process
            drafting = 0.0
        else:
            num_positions += steps * num_steppers
        if not costs.is_chain:  # else a wait for its answer cannot be told from work
            self._overhead.observe(num_positions, seconds - forwards - drafting, drafts=drafting > 0)
        # Rows that cannot draft, since the drafter has missed a part of them, or may not, do not show what it is worth.
        num_unable = sum(
            not n and (length > 0 or sequence.num_speculative_tokens == 0)
            for length, n, sequence in zip(plan.lengths, num_drafted, sequences, strict=True)
        )
        if 2 * num_unable <= num_rows:
            expected = costs.round_seconds + num_positions * costs.position_seconds + forwards + drafting
            self._observe_speed(num_rows, num_rows + sum(num_accepted), seconds, expected)
        else:
            self._trials.wait_for_rows(self._round(num_rows, num_rows + sum(num_accepted), seconds))

    def observe_reading(self, num_rows: int, seconds: float) -> None:
        self._num_newcomers.observe(num_rows)
        if not num_rows and not seconds:  # as between most rounds
            return
        kept = _OF_READING**num_rows
        before, rows_before = self._reading[self.rests]
        self._reading[self.rests] = before * kept + seconds, rows_before * kept + num_rows

    def observe_waking(self, num_rows: int, seconds: float) -> None:
        self._trials.wait_for_rows(self._round(num_rows, 0, seconds))

    def observe_rest(self, num_rows: int, num_tokens: int, seconds: float) -> None:
        self._observe_speed(num_rows, num_tokens, seconds)

    def observe_foresight(self, num_rows: int, num_tokens: int, seconds: float) -> None:
        if self._may_rest and not self._trials.is_trial:
            self._tries_foresight = self._foresight.is_trial
            if self._foresight.observe(self._round(num_rows, num_tokens, seconds), num_rows):
                self._trials.forget_rounds()
            self._tries_foresight |= self._foresight.is_trial  # which may begin with the next round, or have ended

    def _observe_speed(self, num_rows: int, num_tokens: int, seconds: float, expected: float | None = None) -> None:
        tries_foresight, self._tries_foresight = self._tries_foresight, False
        if self._may_rest and not tries_foresight:
            # Prompts are read between rounds: each round bears its part of what the drafter takes for that.
            reading, num_read = self._reading[self.rests]
            seconds += self._num_newcomers.value * reading / max(num_read, 1.0)
            if self._trials.observe(self._round(num_rows, num_tokens, seconds, expected), num_rows):
                self._foresight.forget_rounds()

    def _round(self, num_rows: int, num_tokens: int, seconds: float, expected: float | None = None) -> Round:
        costs, plain = self.costs, self._plain_seconds.get(num_rows)
        if plain is None:
            plain = costs.round_seconds + num_rows * costs.position_seconds + costs.target_seconds(num_rows)
            self._plain_seconds[num_rows] = plain
        size = 1.0 if expected is None else expected / plain
        return Round(num_tokens / num_rows, max(seconds, 1e-9) / plain, size)

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
