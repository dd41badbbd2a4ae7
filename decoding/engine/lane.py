"""Lane: rows that advance together, in slots of their own. A round of theirs is the whole algorithm.

    admission.advance ->  the rows that run: a chunk of the waiting prompts is read between any two rounds
    drafter.propose   ->  K tokens a row, guessed cheaply
    target.score      ->  the logits at all K + 1 positions in one pass: how many tokens are accepted, and what follows
    sequence.commit   ->  tokens and counts; a finished row's slot goes to a waiting row, before the next round

Rollback is implicit: a row's next forward starts at its committed length, over what a rejected token left there.

A lane does one thing at a time. Where that is done in another process (a draft actor, the target's stages), the lane
stops, and others go on meanwhile: with two lanes, one is drafted for while the other is verified.
"""

import time
from collections import deque
from collections.abc import Generator, Iterator, Set
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from dataclasses import replace

import torch

from decoding.cache.features import FeatureTap
from decoding.drafters import Drafter
from decoding.drafters.base import NoDrafter
from decoding.drafters.forced import foreseen_tokens, to_replace, with_forced, without_model
from decoding.engine.admission import Admission
from decoding.engine.close_calls import CloseCalls
from decoding.network.target import Target
from decoding.pace.draft_lengths import DraftPlan
from decoding.pace.schedule import Schedule
from decoding.sampling.distribution import SamplingBatch, first_stop
from decoding.sampling.forbidden import why_nothing_follows
from decoding.sampling.judging import ScoreRequest
from decoding.sampling.rows import Rows, sampling_batch
from decoding.sampling.token_counts import TokenCounts
from decoding.sampling.verdicts import RowVerdict
from decoding.sampling.verify import Draft, Verification
from decoding.sequence import Sequence


class Lane:
    """Rows, their slots in a target and a drafter, and what is in flight of their round."""

    def __init__(
        self,
        target: Target,
        drafter: Drafter,
        schedule: Schedule,
        waiting: deque[Sequence],
        *,
        num_slots: int,
        max_model_len: int,
        max_prefill_tokens: int,
        verification: Verification,
    ) -> None:
        """Take rows from `waiting`, which lanes may share; target and drafter are this lane's own."""
        self.target, self.drafter, self.schedule = target, drafter, schedule
        self.round_seconds = 0.0  # spent in rounds: drafting, scoring, verifying and committing, not reading prompts
        self.running: list[Sequence] = []  # the rows of the last round: row b stands in slot b
        self._verification = verification
        self._close_calls = CloseCalls(target, drafter, verification)
        self._sampling: SamplingBatch | None = None  # of the running rows; None when they have changed
        self._token_counts = TokenCounts(num_slots, target.device)
        self._finished: list[Sequence] = []  # not handed out yet
        self._seconds = 0.0  # of this round, so far
        self._max_model_len = max_model_len
        self._num_slots = self._max_rows = num_slots
        self.admission = Admission(target, drafter, num_slots, max_prefill_tokens, waiting)
        target.allocate(num_slots, max_model_len)
        target.hand_out(drafter.tap)
        # On a GPU features are a part of recordings, and cost hardly anything.
        self._has_dear_features = drafter.tap is not None and target.runs_on == "cpu"
        if self._has_dear_features:
            schedule.heed_features()
        self._turns: Iterator[None] | None = None  # where it stopped; None: before a round
        self._rest = NoDrafter()  # in place of the drafter, in rounds without it
        self._num_rested = 0  # rounds without the drafter since the last one with it

    def advance(self, max_rows: int) -> list[Sequence]:
        """Go on until another process is asked, or to the end of a round; return the rows that have finished.

        Rows are admitted as long as no more than `max_rows` are in flight.
        """
        self._max_rows = max_rows
        if self._turns is None:
            self._turns = self._work()
        try:
            next(self._turns)
        except BaseException:
            self._turns = None
            raise
        return self._take_finished()

    def forget(self, unwanted: Set[Sequence]) -> list[Sequence]:
        """Take unwanted rows whose tokens are still being read out of their slots, and return them."""
        forgotten = [sequence for sequence in self.admission.filling if sequence in unwanted]
        self.admission.remove(set(forgotten))
        return forgotten

    def evict(self, rows: Set[Sequence]) -> list[Sequence]:
        """Take these rows out of their slots, and return them as they are, to be admitted again.

        A round that is under way is dropped; the other rows begin it anew. Where an error ended it, some rows may have
        finished in it: they are returned, too.
        """
        evicted = [sequence for sequence in self.admission.in_flight if sequence in rows]
        if evicted:
            self.admission.remove(set(evicted))
            self.running, self._turns = [], None
        return [*evicted, *self._take_finished()]

    def renew(self) -> None:
        """Begin with empty slots: the target has lost what was in them."""
        self.clear()
        self.target.allocate(self._num_slots, self._max_model_len)

    def renew_draft(self) -> None:
        """Begin anew with a draft that has other weights: what was learned of the earlier one is forgotten."""
        self.schedule.forget()
        if self._num_rested:
            self._num_rested = 0
            self._hand_out(self.drafter.tap)
        self.drafter.renew()
        if not self.schedule.would_draft(self._num_slots):
            self.drafter.rest()

    def close(self) -> None:
        """Give the slots' memory back."""
        self.clear()
        self.target.release()

    def clear(self) -> None:
        """Forget every row, and what is in flight: what to do after an advance that raised."""
        self.admission.clear()
        self.running, self._finished = [], []
        self._sampling = None
        self._turns = None

    def _work(self) -> Iterator[None]:
        while True:
            running = self.admission.advance(self._max_rows)
            if running != self.running:
                self._take_rows(running)
            has_waited = bool(running) and (yield from self._round())
            if not has_waited:  # else the next round's request goes out first
                yield

    def _take_rows(self, running: list[Sequence]) -> None:
        """Run these rows from now on, of which row b is in slot b."""
        self.running, self._sampling = running, None

    @torch.inference_mode()
    def _round(self) -> Generator[None, None, bool]:
        """Advance all running rows; return whether that has waited for another process."""
        self._seconds = 0.0
        with self._timed():
            rows, plan = self._running_rows()
            forced = self._forced(rows, plan) if self._forces(rows) and self.schedule.foresees else []
            to_draft = without_model(rows, forced) if forced else rows
            self.drafter.ask(to_draft)
        if self.drafter.is_remote:
            yield
        with self._timed():
            draft = self._draft(to_draft)
            if forced:
                forced = to_replace(draft, forced)
                draft, plan = with_forced(draft, forced), plan.replaced([len(tokens) for tokens in forced])
            pending = self.target.score(self._score_request(rows, draft))
        must_wait = not pending.is_ready
        if must_wait or self.drafter.is_remote:
            self.schedule.never_rest()
        if must_wait:
            yield
        with self._timed():
            verdicts = pending.result()
            for slot, (sequence, verdict) in enumerate(zip(rows.sequences, verdicts, strict=True)):
                self._commit(slot, sequence, verdict)
            num_drafted, num_accepted = [v.num_drafted for v in verdicts], [v.num_accepted for v in verdicts]
            if not self._num_rested:
                self.drafter.observe(to_draft, _of_drafter(num_drafted, forced), num_accepted)
        self.round_seconds += self._seconds
        num_tokens = len(verdicts) + sum(num_accepted)
        if self._forces(rows):
            self.schedule.observe_foresight(len(verdicts), num_tokens, self._seconds)
        if self._num_rested:
            self.schedule.observe_rest(len(verdicts), num_tokens, self._seconds)
        else:
            self.schedule.observe(plan, rows.sequences, num_drafted, num_accepted, self._seconds)
        return self.drafter.is_remote or must_wait

    def _take_finished(self) -> list[Sequence]:
        finished, self._finished = self._finished, []
        return finished

    def _running_rows(self) -> tuple[Rows, DraftPlan]:
        sequences = tuple(self.running)
        if self._sampling is None:
            self._sampling = sampling_batch(sequences, self.target.eos_token_ids, self.target.device)
        if self.schedule.rests:
            self._num_rested += 1
            # In the first round of rest features replace those of rejected tokens.
            if self._num_rested > 1 and self._has_dear_features and not self.schedule.keeps_features:
                self._hand_out(None)
            nothing = DraftPlan((0,) * len(sequences), (False,) * len(sequences))
            settings = nothing.lengths, self._verification, nothing.uses_lookup
            return Rows(sequences, self._sampling, *settings, token_counts=self._token_counts), nothing
        if self._num_rested:
            self._num_rested = 0
            self._hand_out(self.drafter.tap)
        lengths = self.schedule.lengths(sequences)
        rows = Rows(sequences, self._sampling, lengths, self._verification, token_counts=self._token_counts)
        plan = self.schedule.plan(sequences, self.drafter.lookup_survival(rows), self.drafter.has_model)
        rows = replace(
            rows,
            num_draft_tokens=plan.lengths,
            uses_lookup=plan.uses_lookup,
            extension_limits=plan.extension_limits,
            min_survival=plan.min_survival,
        )
        return rows, plan

    def _hand_out(self, tap: FeatureTap | None) -> None:
        """Give features to a tap, or to none. The target is told only of a change, since it forgets its recordings."""
        if (tap is None) != (self.target.tap is None):
            self.target.hand_out(tap)

    def _forces(self, rows: Rows) -> bool:
        """Tell whether forced tokens may be drafted. Plain decoding stays one token a round."""
        return rows.have_grammars and not isinstance(self.drafter, NoDrafter)

    def _forced(self, rows: Rows, plan: DraftPlan) -> list[list[int]]:
        """Return what the grammars foresee and is worth to draft, of each row; an empty list if no row has any.

        A longer draft by a model stays, since its tokens are allowed ones, too.
        """
        forced = foreseen_tokens(rows.sequences, self.schedule.lengths(rows.sequences))
        by_model = plan.lengths_by_model if self.drafter.has_model else ()
        forced = [[] if by_model and by_model[row] > len(tokens) else tokens for row, tokens in enumerate(forced)]
        if not any(forced):
            return []
        most = self.schedule.most_foreseen(plan, [len(tokens) for tokens in forced])
        return [tokens[:most] for tokens in forced] if most else []

    def _draft(self, rows: Rows) -> Draft:
        # In its first round of rest a drafter forgets the tokens that were rejected in the last one. As long as it gets
        # features it reads them now and then: else it would hold all of them.
        is_away = self._num_rested > 1 and self.target.tap is None
        draft = (self._rest if is_away else self.drafter).propose(rows)
        if self._num_rested == 1:
            self.drafter.rest()
        return draft

    def _score_request(self, rows: Rows, draft: Draft) -> ScoreRequest:
        num_drafted_B = draft.num_draft_tokens_B
        if draft.token_ids_BK.shape[1]:  # what is drafted after an end token cannot be kept
            num_drafted_B = torch.minimum(num_drafted_B, first_stop(draft.token_ids_BK, rows.sampling.stop_ids_BS))
        draft = replace(draft, num_draft_tokens_B=num_drafted_B)
        num_logprobs = tuple(sequence.params.logprobs for sequence in rows.sequences)
        return ScoreRequest(rows, draft, num_logprobs, self.target.close_call)

    def _commit(self, slot: int, sequence: Sequence, verdict: RowVerdict) -> None:
        """Append what a round decided about the row in this slot; a row that ends is handed out by `advance`."""
        self._append(slot, sequence, verdict)
        if sequence.is_finished:
            self._finished.append(sequence)

    def _append(self, slot: int, sequence: Sequence, verdict: RowVerdict) -> None:
        logprobs = verdict.logprobs
        tokens = [*verdict.draft_token_ids[: verdict.num_accepted], verdict.next_token]
        decision: RowVerdict | None = None  # of the token behind `settled` ones, where the round's logits do not tell
        if not verdict.is_finite:
            # Drawn tokens stand once they are accepted: if they were drawn again, what is written would depend on the
            # draft. Under shared noise the same ones are picked again.
            settled = 0 if self._verification == "coupled" else verdict.num_accepted
            decision = self._close_calls.score_again(slot, sequence, tokens[:settled])
        elif verdict.first_close_call <= verdict.num_accepted:
            settled = verdict.first_close_call
            decision = self._close_calls.recheck(sequence, tokens[:settled])
        if decision is not None:
            if not decision.is_finite:
                sequence.fail(self._why_nothing_follows(sequence, tokens[:settled]))
                return
            tokens = [*tokens[:settled], decision.next_token]
            logprobs = [*logprobs[:settled], *decision.logprobs]
        sequence.commit(
            tokens,
            num_draft_tokens=verdict.num_drafted,
            eos_token_ids=self.target.eos_token_ids,
            logprobs=logprobs,
            draft_token_ids=verdict.draft_token_ids,
        )

    def _why_nothing_follows(self, sequence: Sequence, settled: list[int]) -> str:
        """Return why no token can follow a row's own and the settled ones."""
        stop_ids = sequence.stop_ids(self.target.eos_token_ids)
        return why_nothing_follows(sequence, settled, self.target.vocab_size, stop_ids)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self._seconds += time.perf_counter() - started


def _of_drafter(num_drafted: list[int], forced: Seq[list[int]]) -> list[int]:
    """Return how many tokens the drafter itself drafted for each row."""
    return (
        [0 if tokens else count for count, tokens in zip(num_drafted, forced, strict=True)] if forced else num_drafted
    )


def divide_slots(num_slots: int, num_lanes: int) -> Seq[int]:
    """Return the slots of each lane: as equal as can be, and no lane without a slot."""
    num_lanes = min(num_lanes, num_slots)
    return [num_slots // num_lanes + (lane < num_slots % num_lanes) for lane in range(num_lanes)]
