"""HostRounds: rounds that the host drafts and has scored, step by step, in any processes and on any device.

drafter.propose  ->  K tokens a row, guessed cheaply; the tokens that a grammar forces take their place
target.score     ->  the logits at all K + 1 positions in one pass, judged: a few numbers a row
"""

import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

import torch

from decoding.cache.features import FeatureTap
from decoding.drafters.base import Drafter, NoDrafter
from decoding.drafters.hybrid import foreseen_tokens, with_forced
from decoding.engine.rounds.round import Running, Started, Starter
from decoding.network.target import Target
from decoding.pace.draft_lengths import DraftPlan
from decoding.pace.schedule import Schedule
from decoding.sampling.distribution import SamplingBatch, first_stop
from decoding.sampling.judging import ScoreRequest
from decoding.sampling.rows import Rows, Rule, sampling_batch
from decoding.sampling.token_history import TokenCounts
from decoding.sampling.verdicts import Draft
from decoding.sequence import Sequence


@dataclass
class HostRound(Started):
    """A round that was scored, or is being scored in another process."""

    drafter: Drafter | None  # None: it rested
    asked: Rows  # as the drafter got them
    forced: Seq[list[int]]  # drafted tokens of each row that a grammar forced; empty if no row has any
    may_force: bool
    other_seconds: float  # for a draft from another process, or for features that a rest keeps: no work of the round

    def learn(
        self, rows: Seq[Sequence], num_drafted: Seq[int], num_accepted: Seq[int], stop: Callable[[], float]
    ) -> None:
        if self.drafter is not None:
            own = num_drafted
            if self.forced:  # it learns of its own tokens alone
                own = [0 if forced else n for forced, n in zip(self.forced, num_drafted, strict=True)]
            self.drafter.observe(self.asked, own, num_accepted)
        seconds, num_tokens = stop() - self.other_seconds, len(rows) + sum(num_accepted)
        if self.may_force:
            self.schedule.observe_foresight(len(rows), num_tokens, seconds)
        if self.drafter is None:
            self.schedule.observe_rest(len(rows), num_tokens, seconds)
        else:
            self.schedule.observe(self.plan, rows, num_drafted, num_accepted, seconds)


class HostRounds(Starter):
    """Rounds of rows in a target and a drafter, each read before the next one starts."""

    depth = 0

    def __init__(self, target: Target, drafter: Drafter, rule: Rule, num_slots: int) -> None:
        """Draft and score in the slots of `target` and `drafter`."""
        self._target, self._drafter, self._rule = target, drafter, rule
        self._running: Running = ()
        self._sampling: SamplingBatch | None = None  # of the running rows
        self._token_counts = TokenCounts(num_slots, target.device)
        self._rest = NoDrafter()  # in place of the drafter, in rounds without it
        self._num_rested = 0  # rounds without the drafter since the last one with it
        self._planned: tuple[Rows, DraftPlan, Rows, list[list[int]]] | None = None  # with the rows to draft, and forced

    @property
    def has_dear_features(self) -> bool:
        """Whether what the drafter reads of the target takes time: on a GPU it is a part of recordings."""
        tap = self._drafter.tap
        return tap is not None and tap.is_dear and self._target.runs_on == "cpu"

    def ask(self, rows: Running, schedule: Schedule) -> bool:
        """Plan the draft, and ask for it."""
        planned, plan = self._plan(rows, schedule)
        forced = self._forced(planned, plan, schedule) if self._forces(planned) and schedule.foresees else []
        asked = planned
        if forced:  # a row with forced tokens may look up, and has no draft by a model
            may_draft = [up or not tokens for up, tokens in zip(planned.uses_lookup, forced, strict=True)]
            asked = planned.limited(may_draft)
        self._planned = planned, plan, asked, forced
        self._drafter.ask(asked)
        return self._drafter.is_remote

    def start(self, rows: Running, schedule: Schedule, before: Started | None) -> Started:
        """Draft, and let the target score and judge."""
        assert self._planned is not None, "`ask` comes first"
        (planned, plan, asked, forced), self._planned = self._planned, None
        began = time.perf_counter()
        draft = self._draft(asked)
        other_seconds = (time.perf_counter() - began) * (
            self._drafter.is_remote or (schedule.rests and schedule.keeps_features)
        )
        if forced:
            draft, forced = with_forced(draft, forced)
            plan = plan.replaced([len(tokens) for tokens in forced])
        pending = self._target.score(self._score_request(planned, draft))
        if self._drafter.is_remote or not pending.is_ready:
            schedule.never_rest()
        drafter = None if self._num_rested else self._drafter
        is_forcing = self._forces(planned)
        return HostRound(rows, plan, pending, schedule, drafter, asked, forced, is_forcing, other_seconds)

    def drop(self) -> None:
        self._running, self._sampling, self._planned = (), None, None

    def end_rest(self) -> None:
        """Let the drafter take part again, if it rested."""
        if self._num_rested:
            self._num_rested = 0
            self._hand_out(self._drafter.tap)

    def _plan(self, rows: Running, schedule: Schedule) -> tuple[Rows, DraftPlan]:
        if self._sampling is None or rows is not self._running:
            self._sampling = sampling_batch(rows, self._target.eos_token_ids, self._target.device)
            self._running = rows
        rests, nothing = schedule.rests, DraftPlan((0,) * len(rows), (False,) * len(rows))
        lengths = nothing.lengths if rests else schedule.lengths(rows)
        settings = lengths, self._rule, nothing.uses_lookup
        planned = Rows(rows, self._sampling, *settings, token_counts=self._token_counts)
        if rests:
            self._num_rested += 1
            # In the first round of rest features replace those of rejected tokens.
            if self._num_rested > 1 and self.has_dear_features and not schedule.keeps_features:
                self._hand_out(None)
            return planned, nothing
        self.end_rest()
        plan = schedule.plan(rows, self._drafter.lookup_survival(planned), self._drafter.has_model)
        planned = replace(
            planned,
            num_draft_tokens=plan.lengths,
            uses_lookup=plan.uses_lookup,
            extension_limits=plan.extension_limits,
            min_survival=plan.min_survival,
        )
        return planned, plan

    def _hand_out(self, tap: FeatureTap | None) -> None:
        """Give features to a tap, or to none. The target is told only of a change, since it forgets its recordings."""
        if (tap is None) != (self._target.tap is None):
            self._target.hand_out(tap)

    def _forces(self, rows: Rows) -> bool:
        """Tell whether forced tokens may be drafted. Plain decoding stays one token a round."""
        return rows.have_grammars and not isinstance(self._drafter, NoDrafter)

    def _forced(self, rows: Rows, plan: DraftPlan, schedule: Schedule) -> list[list[int]]:
        """Return what the grammars foresee and is worth to draft, of each row; an empty list if no row has any.

        A longer draft by a model stays, since its tokens are allowed ones, too.
        """
        forced = foreseen_tokens(rows.sequences, schedule.lengths(rows.sequences))
        by_model = plan.lengths_by_model if self._drafter.has_model else ()
        forced = [[] if by_model and by_model[row] > len(tokens) else tokens for row, tokens in enumerate(forced)]
        if not any(forced):
            return []
        most = schedule.most_foreseen(plan, [len(tokens) for tokens in forced])
        return [tokens[:most] for tokens in forced] if most else []

    def _draft(self, rows: Rows) -> Draft:
        # In its first round of rest a drafter forgets the tokens that were rejected in the last one. As long as it gets
        # features it reads them now and then: else it would hold all of them.
        is_away = self._num_rested > 1 and self._target.tap is None
        draft = (self._rest if is_away else self._drafter).propose(rows)
        if self._num_rested == 1:
            self._drafter.rest()
        return draft

    def _score_request(self, rows: Rows, draft: Draft) -> ScoreRequest:
        num_drafted_B = draft.num_draft_tokens_B
        if draft.token_ids_BK.shape[1]:  # what is drafted after an end token cannot be kept
            num_drafted_B = torch.minimum(num_drafted_B, first_stop(draft.token_ids_BK, rows.sampling.stop_ids_BS))
        draft = replace(draft, num_draft_tokens_B=num_drafted_B)
        num_logprobs = tuple(sequence.params.logprobs for sequence in rows.sequences)
        return ScoreRequest(rows, draft, num_logprobs, self._target.close_call)
