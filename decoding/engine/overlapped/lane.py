"""OverlappedLane: a lane on a GPU that starts a round before it has read the one before.

The rows of a round are on the device (`decoding/engine/overlapped/rounds.py`), so the GPU need not wait for Python
between two rounds. What the host decides meanwhile comes a round later: a row that has finished takes part in one more
round, whose verdict on it is thrown away, and the draft lengths are chosen by what was known then. Neither changes a
token.

A round with what a recording cannot do (log-probabilities, penalties, a bias, forbidden tokens, a grammar) is run as in
any other lane, after the one that is under way has been read.
"""

import time
from collections.abc import Generator, Set
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any

import torch

from decoding.drafters.model import ModelDrafter
from decoding.engine.lane import Lane
from decoding.engine.overlapped.inputs import RoundInputs, Start
from decoding.engine.overlapped.recordings import Recordings
from decoding.engine.overlapped.rounds import DeviceRounds
from decoding.fused.recording import Recorder
from decoding.gpu.pick_table import PickTable
from decoding.network.language_model import LanguageModel
from decoding.pace.draft_lengths import DraftPlan
from decoding.sampling.verdicts import SentVerdicts
from decoding.sampling_params import SamplingParams
from decoding.sequence import Sequence

_MOST_PREPARED = 8  # drafted tokens of the rounds that are recorded before the first one


@dataclass
class _UnderWay:
    """A round that has been started and not been read."""

    rows: tuple[Sequence | None, ...]  # row b is in slot b; None takes no part
    num_read: list[int]  # positions of each row that the draft had read before, at most
    limits: tuple[int, ...]  # tokens that each row may draft
    num_drafted: int  # the steps of the draft
    verdicts: SentVerdicts
    void: set[Sequence] = field(default_factory=set)  # rows whose state on the device is not the host's


class OverlappedLane(Lane):
    """A lane whose target and drafter `can_overlap` (`decoding/engine/make_lane.py`)."""

    target: LanguageModel

    def __init__(self, *args: Any, record: Recorder | None, **kwargs: Any) -> None:
        """Take what a lane takes; `record` makes the recordings (None: nothing is recorded)."""
        super().__init__(*args, **kwargs)
        self.schedule.never_rest()  # a round's time is that of the device, in which the host's work is hidden
        self._record = record
        self.rounds: DeviceRounds | None = None  # over the caches that are allocated now
        self._under_way: _UnderWay | None = None
        self._postponed: dict[Sequence, int] | None = None  # draft lengths that waited for the round under way
        self._began = 0.0  # when this turn began
        self._can_be_recorded = False  # whether a round of the running rows can
        self._table: PickTable | None = None  # of the running rows

    def evict(self, rows: Set[Sequence]) -> list[Sequence]:
        """Take these rows out of their slots; the round under way is dropped, and the others begin it anew."""
        if any(sequence in rows for sequence in self.admission.in_flight):
            self._under_way = None
        return super().evict(rows)

    def clear(self) -> None:
        """Forget every row, and the round under way."""
        self._under_way, self._postponed = None, None
        super().clear()

    def renew_draft(self) -> None:
        """Begin anew with a draft that has other weights; the rows begin the round under way anew."""
        self._under_way, self._postponed = None, None
        super().renew_draft()

    def renew(self) -> None:
        """Begin with empty slots."""
        self.rounds = None
        super().renew()

    def close(self) -> None:
        """Give the slots' memory back, and that of the recordings."""
        self.rounds = None
        super().close()

    def _take_rows(self, running: list[Sequence]) -> None:
        super()._take_rows(running)
        self._can_be_recorded = all(_can_be_recorded(sequence.params) for sequence in running)
        self._table = None

    @torch.inference_mode()
    def _round(self) -> Generator[None, None, bool]:
        self._began = time.perf_counter()
        if self._can_be_recorded:
            self._start_and_read()
        elif self._under_way is not None:
            self._read()
        else:
            return (yield from super()._round())
        return False

    def _start_and_read(self) -> None:
        """Start the next round, and read the one before; or only read, where the next one needs its results."""
        under_way = self._under_way
        started = self._started()
        if started is None:
            self._read()
            return
        if under_way is not None:
            self._read(started)
        self._under_way = started

    def _started(self) -> _UnderWay | None:
        """Start a round of the running rows; None if the results of the round under way are needed first."""
        rows, under_way = tuple(self.running), self._under_way
        is_known = self._known(rows)
        if is_known is None:
            return None
        # A row that ends with the round under way, whatever that decides, takes no part in the next one.
        takes_part = [not known or row.num_remaining_tokens > 1 for known, row in zip(is_known, rows, strict=True)]
        if not any(takes_part):
            return None
        limits = self._limits(rows, takes_part)
        num_drafted = max(limits)
        lengths = [len(row) for row in rows]
        if under_way is None and self.drafter.has_model:  # other rounds leave guesses behind a row's newest token
            for slot, length in enumerate(lengths):
                self._model_drafter.roll_back(slot, length - 1)
        num_read = self._num_read(lengths, is_known) if self.drafter.has_model else [0] * len(rows)
        num_more = 0 if under_way is None else 1 + under_way.num_drafted  # tokens that a known row may have by now
        if num_drafted:
            behind = [
                slot
                for slot, (limit, read, length, known) in enumerate(
                    zip(limits, num_read, lengths, is_known, strict=True)
                )
                if limit and read < (length + num_more if known else length) - 2
            ]
            if behind and under_way is not None:
                self._postponed = dict(zip(rows, limits, strict=True))
                return None
            self._model_drafter.catch_up([(slot, rows[slot]) for slot in behind])
            for slot in behind:
                num_read[slot] = lengths[slot] - 1
        starts = {slot: _start(rows[slot]) for slot, known in enumerate(is_known) if not known}
        if self._table is None:
            self._table = self._table_of(rows)
        num_visible = max(lengths) + num_more + num_drafted + 1
        verdicts = self._device_rounds().start(RoundInputs(limits, takes_part, starts), self._table, num_visible)
        taking_part: tuple[Sequence | None, ...] = rows
        if not all(takes_part):
            taking_part = tuple(row if takes else None for row, takes in zip(rows, takes_part, strict=True))
        return _UnderWay(taking_part, num_read, limits, num_drafted, verdicts)

    def _known(self, rows: tuple[Sequence, ...]) -> list[bool] | None:
        """Tell which rows the device will know after the round under way; None if such a row has changed its slot."""
        under_way = self._under_way
        if under_way is None:
            return [False] * len(rows)
        if under_way.rows == rows and not under_way.void:
            return [True] * len(rows)
        before = (*under_way.rows, *[None] * (len(rows) - len(under_way.rows)))
        is_known = [row is known and row not in under_way.void for row, known in zip(rows, before, strict=False)]
        num_known = sum(row is not None and not row.is_finished for row in set(under_way.rows) - under_way.void)
        return is_known if sum(is_known) == num_known else None

    def _limits(self, rows: tuple[Sequence, ...], takes_part: Seq[bool]) -> tuple[int, ...]:
        """Plan the draft lengths by what the host knows: rows of the round under way may be longer by now."""
        postponed, self._postponed = self._postponed, None
        if postponed is not None:  # another plan would not have the probe that this one may have
            return tuple(min(postponed.get(row, 0), row.num_remaining_tokens - 1) for row in rows)
        plan = self.schedule.plan(rows, None, self.drafter.has_model)
        if not self.drafter.has_model:
            return (0,) * len(rows)
        limits, longest = plan.lengths, self._model_drafter.max_len
        if not all(takes_part) or max(map(len, rows)) + self.schedule.ceiling > longest:
            limits = tuple(
                max(0, min(limit, longest - len(row))) if takes else 0
                for limit, row, takes in zip(limits, rows, takes_part, strict=True)
            )
        self._model_drafter.idle_rounds.count(len(limits) - limits.count(0), len(limits))
        return limits

    def _num_read(self, lengths: Seq[int], is_known: Seq[bool]) -> list[int]:
        """Return how many positions of each row the draft has read, at most, when the round under way is done.

        A round with draft steps reads all but the last two of a row as it is after it, if it lacked no more before.
        """
        drafter, under_way = self._model_drafter, self._under_way
        if under_way is None:
            return [drafter.num_ingested(slot) for slot in range(len(lengths))]
        num_more = under_way.num_drafted - 1
        before = [*under_way.num_read, *[0] * (len(lengths) - len(under_way.num_read))]
        return [
            (length + num_more if num_more >= 0 and read >= length - 2 else read)
            if known
            else drafter.num_ingested(slot)
            for slot, (length, read, known) in enumerate(zip(lengths, before, is_known, strict=False))
        ]

    def _device_rounds(self) -> DeviceRounds:
        if self.rounds is None:
            drafter = self.drafter if isinstance(self.drafter, ModelDrafter) else None
            self.rounds = DeviceRounds(self.target, drafter, self._num_slots, Recordings(self._record))
            if self._record is not None:
                likely = Sequence.create([0], SamplingParams())  # with the model's own end tokens alone
                table = self._table_of((likely,) * self._num_slots)
                self.rounds.prepare(table, min(self.schedule.ceiling, _MOST_PREPARED))
        return self.rounds

    def _read(self, newer: _UnderWay | None = None) -> None:
        """Commit the round under way; `newer` is the one after it, which has been started."""
        under_way, self._under_way = self._under_way, None
        assert under_way is not None
        verdicts = under_way.verdicts.result()
        slots = {sequence: slot for slot, sequence in enumerate(self.running)}  # some rows may have changed theirs
        drafter = self._model_drafter if self.drafter.has_model else None
        num_fed = under_way.num_drafted - 1  # drafted tokens that the draft has read, where they were accepted
        rows, limits, num_drafted, num_accepted = [], [], [], []
        for sequence, limit, read, verdict in zip(
            under_way.rows, under_way.limits, under_way.num_read, verdicts, strict=True
        ):
            if sequence is None or sequence.finish_reason is not None or sequence in under_way.void:
                continue
            slot, length = slots[sequence], len(sequence)
            accepted, next_token, _, is_finite, drafted, draft, _ = verdict
            if is_finite:
                tokens = [*draft[:accepted], next_token]
                commit_within_limit(sequence, draft[:drafted], tokens, self.target.eos_token_ids)
                if sequence.finish_reason is not None:
                    self._finished.append(sequence)
            else:
                self._commit(slot, sequence, verdict)
            if drafter is not None:
                if is_finite and num_fed >= 0 and read >= length - 2:
                    drafter.ingested(slot, length + (accepted if accepted < num_fed else num_fed))
                if newer is not None:
                    newer.num_read[slot] = drafter.num_ingested(slot)  # it was the most that it could be
            if newer is not None and not is_finite:
                newer.void.add(sequence)
            rows.append(sequence)
            limits.append(limit)
            num_drafted.append(drafted)
            num_accepted.append(accepted)
        if rows:
            plan = DraftPlan(tuple(limits), (False,) * len(rows))
            seconds = time.perf_counter() - self._began
            self.round_seconds += seconds
            self.schedule.observe(plan, rows, num_drafted, num_accepted, seconds)

    def _table_of(self, rows: tuple[Sequence, ...]) -> PickTable:
        return PickTable.build(
            [row.params for row in rows],
            [row.noise_key for row in rows],
            [row.stop_ids(self.target.eos_token_ids) for row in rows],
            [len(row.prompt_token_ids) for row in rows],
            self.target.device,
        )

    @property
    def _model_drafter(self) -> ModelDrafter:
        assert isinstance(self.drafter, ModelDrafter)
        return self.drafter


def commit_within_limit(
    sequence: Sequence, drafted: list[int], tokens: list[int], eos_token_ids: frozenset[int]
) -> None:
    """Commit accepted tokens and the one behind them, as if no more had been drafted than the row may still write.

    Draft lengths are planned before the host knows how far a row has come, so a draft may go beyond the row's end. An
    accepted token is the target's own pick, so the one that ends the row is that of the round.
    """
    num_remaining = sequence.num_remaining_tokens
    if len(drafted) >= num_remaining:
        drafted, tokens = drafted[: num_remaining - 1], tokens[:num_remaining]
    sequence.commit(tokens, num_draft_tokens=len(drafted), eos_token_ids=eos_token_ids, draft_token_ids=drafted)


def _can_be_recorded(params: SamplingParams) -> bool:
    is_plain = params.logprobs is None and not params.uses_token_counts and not params.logit_bias
    return is_plain and params.structured is None and not params.forbids_tokens


def _start(row: Sequence) -> Start:
    tokens = row.token_ids
    return Start(len(tokens), tokens[-2] if len(tokens) > 1 else tokens[-1], tokens[-1])
