"""Lane: rows that advance together, in slots of their own. A round of theirs is the whole algorithm.

    admission.advance ->  who runs: a chunk of the waiting prompts is read between any two rounds
    drafter.propose   ->  K tokens a row, guessed cheaply
    target.score      ->  the logits at all K + 1 positions in one pass: how many guesses stand, and what follows
    sequence.commit   ->  tokens and counts; a finished row's slot goes to whoever waits, before the next round

Rollback is implicit: a row's next forward starts at its committed length, over whatever a rejected guess left there.

A lane does one thing at a time. Where that is done in another process (a draft actor, the target's stages), the lane
stops, and others go on meanwhile: with two lanes, one is drafted for while the other is verified.
"""

import time
from collections import deque
from collections.abc import Generator, Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from dataclasses import replace

import torch

from decoding.drafters import Drafter
from decoding.engine.admission import Admission
from decoding.engine.close_calls import SecondLook
from decoding.network.target import Target
from decoding.pace.schedule import Schedule
from decoding.sampling.batch import SamplingBatch, first_stop
from decoding.sampling.judging import RowVerdict, ScoreRequest
from decoding.sampling.rows import Rows, sampling_batch
from decoding.sampling.verify import Verification
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
        """Rows come from `waiting`, which lanes may share; target and drafter are this lane's own."""
        self.target, self.drafter, self.schedule = target, drafter, schedule
        self.round_seconds = 0.0  # spent in rounds: drafting, scoring, verifying and committing, not reading prompts
        self.running: list[Sequence] = []  # the rows of the last round: row b stands in slot b
        self._verification = verification
        self._second_look = SecondLook(target, drafter, verification)
        self._sampling: SamplingBatch | None = None  # of the running rows; None when they have changed
        self._finished: list[Sequence] = []  # in this advance
        self._seconds = 0.0  # of this round, so far
        target.allocate(num_slots, max_model_len)
        self.admission = Admission(target, drafter, num_slots, max_prefill_tokens, waiting)
        self._turns: Iterator[None] | None = None  # where it stopped; None: before a round

    @property
    def num_rechecks(self) -> int:
        """Close calls that were scored again alone."""
        return self._second_look.num_rechecks

    @property
    def num_running(self) -> int:
        """Rows in flight: those that write, and those whose prompts are being read."""
        return sum(not sequence.is_finished for sequence in self.running) + self.admission.num_filling

    def advance(self) -> list[Sequence]:
        """Go on until another process is asked, or to the end of a round; the running rows that have finished."""
        if self._turns is None:
            self._turns = self._work()
        try:
            next(self._turns)
        except BaseException:
            self._turns = None
            raise
        finished, self._finished = self._finished, []
        return finished

    def clear(self) -> None:
        """Forget every row, and what is in flight: what to do after an advance that raised."""
        self.admission.clear()
        self.running, self._finished = [], []
        self._sampling = None
        self._turns = None

    def _work(self) -> Iterator[None]:
        while True:
            running = self.admission.advance()
            if running != self.running:
                self.running, self._sampling = running, None
            has_waited = bool(running) and (yield from self._round())
            if not has_waited:  # else the next round's request goes out first
                yield

    @torch.inference_mode()
    def _round(self) -> Generator[None, None, bool]:
        """Whether it has waited for another process."""
        self._seconds = 0.0
        with self._timed():
            rows = self._running_rows()
            self.drafter.ask(rows)
        if self.drafter.is_remote:
            yield
        with self._timed():
            pending = self.target.score(self._score_request(rows))
        must_wait = not pending.is_ready
        if must_wait:
            yield
        with self._timed():
            verdicts = pending.result()
            for row, verdict in enumerate(verdicts):
                self._commit(row, verdict)
            num_drafted, num_accepted = [v.num_drafted for v in verdicts], [v.num_accepted for v in verdicts]
            self.drafter.observe(rows, num_drafted, num_accepted)
        self._finished += [sequence for sequence in self.running if sequence.is_finished]
        self.round_seconds += self._seconds
        self.schedule.observe(rows.sequences, num_drafted, num_accepted, self._seconds)
        return self.drafter.is_remote or must_wait

    def _running_rows(self) -> Rows:
        sequences = tuple(self.running)
        if self._sampling is None:
            self._sampling = sampling_batch(sequences, self.target.eos_token_ids, self.target.device)
        rows = Rows(sequences, self._sampling, self.schedule.lengths(sequences), self._verification)
        plan = self.schedule.plan(sequences, self.drafter.lookup_survival(rows), self.drafter.has_model)
        return replace(
            rows, num_draft_tokens=plan.lengths, uses_lookup=plan.uses_lookup, extension_limits=plan.extension_limits
        )

    def _score_request(self, rows: Rows) -> ScoreRequest:
        draft = self.drafter.propose(rows)
        num_drafted_B = draft.num_draft_tokens_B
        if draft.token_ids_BK.shape[1]:  # what is drafted after an end token cannot be kept
            num_drafted_B = torch.minimum(num_drafted_B, first_stop(draft.token_ids_BK, rows.sampling.stop_ids_BS))
        draft = replace(draft, num_draft_tokens_B=num_drafted_B)
        return ScoreRequest(rows, draft, tuple(sequence.params.logprobs for sequence in rows.sequences))

    def _commit(self, row: int, verdict: RowVerdict) -> None:
        sequence, logprobs = self.running[row], verdict.logprobs
        tokens = [*verdict.draft_token_ids[: verdict.num_accepted], verdict.next_token]
        decision: RowVerdict | None = None  # of the token behind `settled` ones, where the round's logits do not tell
        if not verdict.is_finite:
            settled, decision = 0, self._second_look.score_again(row, sequence)
        elif verdict.first_close_call <= verdict.num_accepted:
            settled = verdict.first_close_call
            decision = self._second_look.recheck(sequence, tokens[:settled])
        if decision is not None:
            if not decision.is_finite:
                sequence.fail(
                    decision.failure
                    or f"the target's logits are not finite after {len(sequence) + settled} tokens; "
                    "if this is a float16 overflow, use bfloat16 or float32"
                )
                return
            tokens = [*tokens[:settled], decision.next_token]
            logprobs = [*logprobs[:settled], *decision.logprobs]
        sequence.commit(
            tokens,
            num_draft_tokens=verdict.num_drafted,
            eos_token_ids=self.target.eos_token_ids,
            logprobs=logprobs,
        )

    @contextmanager
    def _timed(self) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self._seconds += time.perf_counter() - started


def share_out(num_slots: int, num_lanes: int) -> Seq[int]:
    """Slots of each lane: as equal as can be, and none without a slot."""
    num_lanes = min(num_lanes, num_slots)
    return [num_slots // num_lanes + (lane < num_slots % num_lanes) for lane in range(num_lanes)]
