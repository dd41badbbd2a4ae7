"""ShardedModel: a target whose layers are shared out over stage actors. The engine sees a `Target` like any other."""

from __future__ import annotations

import time
from collections.abc import Sequence as Seq
from itertools import count
from weakref import WeakKeyDictionary

import torch

from actors.stages.facts import goes_with
from actors.stages.pipeline import StagePipeline
from actors.stages.slots import RemoteSlots
from actors.stages.step import Step
from actors.stages.work import Decide, Finish, Judge, Logits, Nothing, Score, Work, for_travel, question_of
from decoding.cache.prefill import batches
from decoding.network.target import timed_start
from decoding.sampling.judging import RowVerdict, ScoreRequest
from decoding.sampling.rows import Rows
from decoding.sequence import Sequence, TokenLogprobs

_NOT_FINITE = RowVerdict(0, 0, 0, False, 0, [], [])


class ShardedModel:
    """A session on a pipeline of stages: slots of its own in each of them."""

    def __init__(self, pipeline: StagePipeline, device: torch.device | None = None) -> None:
        """Over stages that were told all they need (`actors/stages/probe.py`); questions come on `device` (the CPU)."""
        self.pipeline = pipeline
        self.facts_of_stages = pipeline.group.facts()
        first, last = self.facts_of_stages[0], self.facts_of_stages[-1]
        assert last.vocab_size is not None, "the last stage has the head"
        self.device = device or torch.device("cpu")
        self.dtype: torch.dtype = last.dtype
        self.vocab_size: int = last.vocab_size
        self.max_positions: int | None = first.max_positions
        self.eos_token_ids: frozenset[int] = first.eos_token_ids
        self.cache: RemoteSlots | None = None
        self._sessions = count()
        self._session = next(self._sessions)
        self._lost: WeakKeyDictionary[Sequence, str] = WeakKeyDictionary()  # rows that stages died over, and how

    @property
    def runs_on(self) -> str:
        """As `Target.runs_on`, of the stages: questions are put on `device`, which may be another one."""
        return ", ".join(sorted({facts.device_name for facts in self.facts_of_stages}))

    @property
    def is_batch_invariant(self) -> bool:
        """Whether every stage is: then a token's logits are the same, bit for bit, whatever stands beside it."""
        return all(facts.is_batch_invariant for facts in self.facts_of_stages)

    @property
    def num_lanes(self) -> int:
        """So many that every stage has work."""
        return len(self.facts_of_stages)

    def facts(self) -> dict[str, bool | int]:
        """Whether our layers run, and on how many stages, and by how many processes each."""
        return {
            "fused": all(facts.is_fused for facts in self.facts_of_stages),
            "graphs": False,
            "stages": len(self.facts_of_stages),
            "ranks": self.pipeline.group.settings.tensor_parallel,
        }

    def share(self) -> ShardedModel:
        """The same stages with slots of its own."""
        twin = ShardedModel(self.pipeline, self.device)
        twin._sessions, twin._session = self._sessions, next(self._sessions)
        return twin

    def allocate(self, num_slots: int, num_positions: int) -> None:
        """As `Target.allocate`."""
        self.pipeline.allocate(self._session, num_slots, num_positions)
        self.cache = RemoteSlots(self.pipeline, self._session, num_positions)

    def release(self) -> None:
        """As `Target.release`."""
        self.cache = None
        self.pipeline.release(self._session)

    def prefill(self, slots: Seq[int], token_ids: Seq[Seq[int]], starts: Seq[int] | None = None) -> None:
        """As `Target.prefill`; it is under way when this returns."""
        for batch in batches(slots, token_ids, starts, goes_with(self.facts_of_stages)):
            standing = self._standing()
            whole = [piece for piece in batch if piece.start <= standing[piece.slot]]
            if whole:
                self._send([piece.slot for piece in whole], [piece.start for piece in whole], [p.tokens for p in whole])

    def score(self, question: ScoreRequest) -> ShardedAnswer:
        """As `Target.score`. A row whose tokens do not stand in its slot (a stage died over them) is not run."""
        starts, standing = question.starts, self._standing()
        for row, sequence in enumerate(question.rows.sequences):
            loss = self.pipeline.loss(sequence.token_ids) if starts[row] > standing[row] else None
            if loss is not None:
                self.give_up(sequence, loss)
        num_positions = question.token_ids_BJ.shape[1]
        lengths = question.lengths or [num_positions] * len(starts)
        known = [
            row
            for row, sequence in enumerate(question.rows.sequences)
            if starts[row] <= standing[row] and sequence not in self._lost
        ]
        step: Step | None = None
        if known:
            tokens = question.token_ids_BJ.tolist()
            step = self._send(
                known,
                [starts[row] for row in known],
                [tokens[row][: lengths[row]] for row in known],
                num_positions,
                Judge(question_of(question, known)),
            )
        return ShardedAnswer(self, question, known, step)

    def decide(
        self, rows: Rows, accepted: Seq[int], num_logprobs: int | None, in_slot: int | None = None
    ) -> RowVerdict:
        """As `Target.decide`. A decision over which stages died says so (`RowVerdict.failure`)."""
        (sequence,) = rows.sequences
        if sequence in self._lost:
            return _NOT_FINITE._replace(failure=self._lost[sequence])
        token_ids = [*sequence.token_ids, *accepted]
        finish = Decide(for_travel(rows), tuple(accepted), num_logprobs)
        if in_slot is None:
            step = Step(Work(None, lengths=(len(token_ids),), num_logits=1), [token_ids], finish)
            self.pipeline.send(step)
        else:
            *before, newest = token_ids
            self.prefill([in_slot], [before])
            step = self._send([in_slot], [len(before)], [[newest]], 1, finish)
        decision: RowVerdict | None = self.pipeline.settle(step)
        if decision is None:
            loss = step.loss_of(0) or self.pipeline.loss(token_ids)
            self._lost[sequence] = loss or "the target's stages were lost over this row"
            return _NOT_FINITE._replace(failure=self._lost[sequence])
        return decision

    def logprobs(self, start: int, token_ids: Seq[int], following: Seq[int], num_top: int) -> list[TokenLogprobs]:
        """As `Target.logprobs`. Raises RuntimeError if stages were lost over it."""
        if start > self._standing()[0]:
            raise RuntimeError("the target's stages were lost over what stands before these tokens")
        step = self._send([0], [start], [list(token_ids)], len(token_ids), Score(tuple(following), num_top))
        logprobs: list[TokenLogprobs] | None = self.pipeline.settle(step)
        if logprobs is None:
            raise RuntimeError(f"the target's stages were lost over these tokens: {step.loss}")
        return logprobs

    def seconds(self, num_rows: int, num_tokens: int) -> float:
        """As `Target.seconds`: through all stages, with nothing else in flight."""
        assert self.cache is not None
        start = timed_start(self.cache.num_positions, num_tokens)
        if min(self._standing()[:num_rows]) < start:
            self.prefill(range(num_rows), [[0] * start] * num_rows)
        self.pipeline.drain()
        started = time.perf_counter()
        self._send(range(num_rows), [start] * num_rows, [[0] * num_tokens] * num_rows, num_tokens, Nothing())
        self.pipeline.drain()
        return time.perf_counter() - started

    def logits(self, slots: Seq[int], starts: Seq[int], token_ids: Seq[Seq[int]]) -> torch.Tensor:
        """Logits [B, J, V] at the tokens of each row, at a shorter one's last again. Large: for measurements."""
        step = self._send(slots, starts, token_ids, max(len(tokens) for tokens in token_ids), Logits())
        logits_BJV: torch.Tensor | None = self.pipeline.settle(step)
        if logits_BJV is None:
            raise RuntimeError(f"the target's stages were lost over these rows: {step.loss or 'over each alone'}")
        return logits_BJV

    def give_up(self, sequence: Sequence, why: str) -> None:
        """Stages died over this row, with nothing beside it."""
        self._lost[sequence] = why

    def _send(
        self,
        slots: Seq[int],
        starts: Seq[int],
        token_ids: Seq[Seq[int]],
        num_logits: int = 0,
        finish: Finish | None = None,
    ) -> Step:
        assert self.cache is not None, "allocate() comes first"
        work = Work(
            self._session,
            self.cache.take_changes(),
            tuple(slots),
            tuple(starts),
            tuple(len(tokens) for tokens in token_ids),
            num_logits,
        )
        return self.pipeline.send(Step(work, [list(tokens) for tokens in token_ids], finish or Nothing()))

    def _standing(self) -> list[int]:
        assert self.cache is not None, "allocate() comes first"
        return self.cache.lengths()


class ShardedAnswer:
    """The verdicts on a question's rows, on their way from the last stage."""

    def __init__(self, model: ShardedModel, question: ScoreRequest, known: list[int], step: Step | None) -> None:
        """Only the `known` rows were asked about; the others' verdict is that nothing is known of them."""
        self._model, self._question, self._known, self._step = model, question, known, step

    @property
    def is_ready(self) -> bool:
        """As `PendingVerdicts.is_ready`."""
        return self._step is None or self._model.pipeline.is_ready(self._step)

    def result(self) -> list[RowVerdict]:
        """As `PendingVerdicts.result`."""
        sequences = self._question.rows.sequences
        verdicts = [_NOT_FINITE] * len(sequences)
        if self._step is None:
            return verdicts
        pipeline = self._model.pipeline
        answers = pipeline.settle(self._step) or [None]  # a single row that was given up
        for index, (row, answer) in enumerate(zip(self._known, answers, strict=True)):
            if answer is not None:
                verdicts[row] = answer
                continue
            loss = self._step.loss_of(index) or pipeline.loss(sequences[row].token_ids)
            if loss is not None:
                self._model.give_up(sequences[row], loss)
        return verdicts
