"""Schedule: how many draft tokens each row gets in a round, as many as pay, down to none.

A round costs the time of its draft steps, its target forward and the engine's overhead (`CostTable`, measured on the
device itself). Its yield is estimated from past acceptance (`Acceptance`) and from what a lookup offers (the drafter's
`lookup_survival`). `best_lengths` weighs one against the other.

A row's draft length depends on committed tokens, on how much was accepted and on measured times, never on rejected
tokens and never on noise to come. So the choice is lossless under rejection verification, too (a policy that drops a
drafted token because of that token is not). What a lookup offers is a point mass fixed by the tokens before it, so a
choice that depends on its tokens depends on those only.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence as Seq

from decoding.pace.acceptance import Acceptance, RecentDrafts
from decoding.pace.cost_table import CostTable
from decoding.pace.draft_lengths import DraftPlan
from decoding.pace.trials import REST, Trials
from decoding.sequence import Sequence


class Schedule(ABC):
    """Decides draft lengths before a round and learns after it."""

    costs: CostTable | None = None  # as measured at the start; None: the lengths do not depend on costs

    def __init__(self, ceiling: int) -> None:
        """Plan drafts of at most `ceiling` tokens a row."""
        self.ceiling = ceiling
        self._acceptance = Acceptance(ceiling)
        self.recent_drafts = RecentDrafts()  # of the draft model
        self._may_rest = True
        self._trials, self._foresight = Trials(), Trials()  # which rest where a schedule lets them observe rounds

    def forget(self) -> None:
        """Forget what was learned of the draft model: it has other weights now."""
        self._acceptance = Acceptance(self.ceiling)
        self.recent_drafts.clear()

    def would_draft(self, num_rows: int) -> bool:
        """Tell whether `num_rows` new rows would draft with a model."""
        return True

    def lengths(self, sequences: Seq[Sequence]) -> tuple[int, ...]:
        """Return the longest draft that each row may have and could keep."""
        ceiling = self.ceiling
        most = [sequence.max_draft_tokens for sequence in sequences]
        return tuple([limit if limit < ceiling else ceiling for limit in most])

    @property
    def trials(self) -> Trials:
        """The trials that say whether it rests, and which of several drafters drafts."""
        return self._trials

    @property
    def rests(self) -> bool:
        """Whether the next round is done without the drafter: no plan and no lookup."""
        return self._may_rest and self._trials.way == REST

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
        self._trials = Trials(has_features=(True,))

    def heed_states(self) -> None:  # noqa: B027 - may be ignored
        """Learn that the target keeps a state for each token of a draft: none is longer than the ceiling."""

    @abstractmethod
    def plan(self, sequences: Seq[Sequence], lookup_survival: Seq[Seq[float]] | None, has_model: bool) -> DraftPlan:
        """Plan the draft of these rows, given the chances of what was looked up (`Drafter.lookup_survival`)."""

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

    def observe_reading(self, num_rows: int, seconds: float) -> None:  # noqa: B027 - may be ignored
        """Learn how many rows came since the round before, and how long the drafter read their prompts."""

    def observe_waking(self, num_rows: int, seconds: float) -> None:  # noqa: B027 - may be ignored
        """Learn how long its drafter took, when its turn came, to read what it had missed of these rows."""

    def observe_foresight(self, num_rows: int, num_tokens: int, seconds: float) -> None:  # noqa: B027 - may be ignored
        """Learn from a round of rows with grammars, whether or not these were asked what they foresee."""

    def never_rest(self) -> None:
        """Learn that rounds wait for something else: what they take is not what the drafter costs."""
        self._may_rest = False


class FixedSchedule(Schedule):
    """The same draft length for every row, or as much of it as a row can keep; for comparison."""

    def plan(self, sequences: Seq[Sequence], lookup_survival: Seq[Seq[float]] | None, has_model: bool) -> DraftPlan:
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
