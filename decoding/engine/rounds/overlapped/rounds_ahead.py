"""RoundsAhead: rounds on a GPU, each of which starts before the one before it is read.

The rows of a round are on the device (`rounds.py` beside this file), so the GPU need not wait for Python between two
rounds. What the host decides meanwhile comes a round later: a row that has finished takes part in one more
round, whose verdict on it is thrown away, and the draft lengths are chosen by what was known then. Neither changes a
token.

A round that needs what the host knows (a lookup, a grammar), or that a recording cannot do (a bias, forbidden tokens),
is planned by the host (`planned_rounds.py`), after the one that is under way has been read.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

from decoding.drafters.model import ModelDrafter
from decoding.drafters.stepwise import HeadDrafter
from decoding.engine.rounds.overlapped.counts import SlotCounts
from decoding.engine.rounds.overlapped.head_steps import steps_of
from decoding.engine.rounds.overlapped.inputs import RoundInputs, Start
from decoding.engine.rounds.overlapped.rounds import DeviceRounds
from decoding.engine.rounds.overlapped.steps import DraftSteps
from decoding.engine.rounds.round import Decided, Running, Started, Starter
from decoding.fused.recordings import Recorder, Recordings
from decoding.gpu.pick_table import PickTable
from decoding.network.language_model import LanguageModel
from decoding.pace.draft_lengths import DraftPlan
from decoding.pace.schedule import Schedule
from decoding.sampling_params import SamplingParams
from decoding.sequence import Sequence

_MOST_PREPARED = 8  # drafted tokens of the rounds that are recorded before the first one


@dataclass
class _RoundAhead(Started):
    """A round on the device. `rows` has None also for a row whose state there is not the host's."""

    steps: DraftSteps | None
    is_level: list[bool]  # whether the first step of the draft has read all that it lacked of a row
    counts: SlotCounts | None  # that rows have added their tokens to; None: no row has penalties

    @property
    def num_drafted(self) -> int:
        """The steps of the draft."""
        return max(self.plan.lengths)

    def read(self, running: Running, newer: Started | None) -> list[Decided]:
        """Return the verdicts on rows that go on, and note how far the draft has read, which is known now."""
        slots = {sequence: slot for slot, sequence in enumerate(running)}  # some rows may have changed theirs
        decided, limits, num_drafted = [], [], self.num_drafted
        for place, (sequence, limit, is_level, verdict) in enumerate(
            zip(self.rows, self.plan.lengths, self.is_level, self.verdicts.result(), strict=True)
        ):
            if sequence is None or sequence.finish_reason is not None:
                continue
            slot = slots[sequence]
            decided.append((slot, sequence, verdict))
            limits.append(limit)
            if not verdict.is_finite:
                if newer is not None:
                    newer.rows = tuple(None if row is sequence else row for row in newer.rows)
                continue
            if self.steps is not None and is_level:
                self.steps.note(slot, place, sequence, verdict, num_drafted)
            if self.counts is not None:
                self.counts.note(place, sequence, verdict.num_accepted + 1)
        self.plan = _plan_of(limits)
        return decided


class RoundsAhead(Starter):
    """Rounds of a target and a drafter that `can_be_recorded` (`decoding/engine/rounds/lane.py`)."""

    depth = 1

    def __init__(
        self,
        target: LanguageModel,
        drafter: ModelDrafter | HeadDrafter[Any] | None,
        num_slots: int,
        record: Recorder | None,
        looks_up: bool = False,
    ) -> None:
        """Draft with a model, a head or not at all; `record` makes the recordings (None: nothing is recorded)."""
        self.depth = int(not looks_up)  # the host plans each round of a drafter that looks tokens up, too
        self._target, self._drafter, self._num_slots = target, drafter, num_slots
        self.record = record
        self.device_rounds: DeviceRounds | None = None  # over the caches that are allocated now
        self._postponed: dict[Sequence, int] | None = None  # draft lengths that waited for the round under way
        self._running: Running = ()
        self._can_be_recorded = False  # whether a round of the running rows can
        self._table: PickTable | None = None  # of the running rows

    def drop(self) -> None:
        self._postponed, self._running, self._table = None, (), None
        if self.device_rounds is not None:
            self.device_rounds.counts.drop()

    def forget_caches(self) -> None:
        """Drop the recordings; their memory is given back."""
        self.device_rounds = None

    def can_start(self, rows: Running) -> bool:
        """Tell whether a recording can do all that these rows ask for."""
        if rows is not self._running:
            self._running, self._table = rows, None
            self._can_be_recorded = all(
                recordings_can_pick(sequence.params) and sequence.params.structured is None for sequence in rows
            )
        return self._can_be_recorded and self.depth > 0

    def start(self, rows: Running, schedule: Schedule, before: Started | None) -> Started | None:
        """Start a round of these rows; None if the verdicts of the round before are needed first."""
        assert before is None or isinstance(before, _RoundAhead)
        is_known = _known(rows, before)
        if is_known is None:
            return None
        # A row that ends with the round under way, whatever that decides, takes no part in the next one.
        takes_part = [not known or row.num_remaining_tokens > 1 for known, row in zip(is_known, rows, strict=True)]
        if not any(takes_part):
            return None
        limits, device_rounds = self._limits(rows, takes_part, schedule), self.over_caches(schedule)
        steps, is_level = device_rounds.steps, [False] * len(rows)
        if steps is not None:
            of_before = (None, False) if before is None else (before.is_level, before.num_drafted > 0)
            is_level = steps.levels(rows, is_known, *of_before)
            if not steps.catches_up:
                limits = [min(limit, steps.most) if level else 0 for limit, level in zip(limits, is_level, strict=True)]
        if isinstance(self._drafter, ModelDrafter):
            behind = [slot for slot, limit in enumerate(limits) if limit and not is_level[slot]]
            if behind and before is not None:
                self._postponed = dict(zip(rows, limits, strict=True))
                return None
            if behind:
                self._drafter.catch_up([(slot, rows[slot]) for slot in behind])
            for slot in behind:
                is_level[slot] = True
        num_drafted, longest = max(limits), max(map(len, rows))
        starts = {slot: start_of(rows[slot]) for slot, known in enumerate(is_known) if not known}
        if self._table is None:
            self._table = self._table_of(rows)
        num_more = 0 if before is None else 1 + before.num_drafted  # tokens that a known row may have by now
        num_visible = longest + num_more + num_drafted + 1
        inputs = RoundInputs(limits, takes_part, starts)
        counts = device_rounds.counts if any(self._table.uses_counts) else None
        if counts is not None:
            counts.bring([(slot, rows[slot]) for slot in starts])
        verdicts = device_rounds.start(inputs, self._table, num_visible, [row.params.logprobs for row in rows])
        taking_part: tuple[Sequence | None, ...] = rows
        if not all(takes_part):
            taking_part = tuple(row if takes else None for row, takes in zip(rows, takes_part, strict=True))
        return _RoundAhead(taking_part, _plan_of(limits), verdicts, schedule, steps, is_level, counts)

    def _limits(self, rows: Running, takes_part: Seq[bool], schedule: Schedule) -> Seq[int]:
        """Plan the draft lengths by what the host knows: rows of the round under way may be longer by now."""
        postponed, self._postponed = self._postponed, None
        # Another plan would not have the probe that this one may have.
        if postponed and not postponed.keys().isdisjoint(rows):
            assert self._drafter is not None, "only drafts are postponed"
            most = [min(row.num_remaining_tokens - 1, self._drafter.max_len - len(row)) for row in rows]
            return [max(0, min(postponed.get(row, 0), limit)) for row, limit in zip(rows, most, strict=True)]
        plan = schedule.plan(rows, None, self._drafter is not None)
        if self._drafter is None:
            return (0,) * len(rows)
        limits, longest = plan.lengths, self._drafter.max_len
        if not all(takes_part) or max(map(len, rows)) + schedule.ceiling > longest:
            limits = tuple(
                max(0, min(limit, longest - len(row))) if takes else 0
                for limit, row, takes in zip(limits, rows, takes_part, strict=True)
            )
        if isinstance(self._drafter, ModelDrafter):
            self._drafter.count_drafting(limits)
        return limits

    def over_caches(self, schedule: Schedule) -> DeviceRounds:
        """Return the rounds over the caches that are allocated now."""
        if self.device_rounds is None:
            steps = steps_of(self._drafter, self._num_slots, schedule.ceiling)
            self.device_rounds = DeviceRounds(self._target, steps, self._num_slots, Recordings(self.record, "rounds"))
            if self.record is not None:
                likely = Sequence.create([0], SamplingParams())  # with the model's own end tokens alone
                table = self._table_of((likely,) * self._num_slots)
                most_drafted = _MOST_PREPARED if steps is None else min(steps.most, _MOST_PREPARED)
                self.device_rounds.prepare(table, min(schedule.ceiling, most_drafted))
        return self.device_rounds

    def _table_of(self, rows: Running) -> PickTable:
        return PickTable.build(
            [row.params for row in rows],
            [row.noise_key for row in rows],
            [row.stop_ids(self._target.eos_token_ids) for row in rows],
            [len(row.prompt_token_ids) for row in rows],
            self._target.device,
        )


def _known(rows: Running, before: _RoundAhead | None) -> list[bool] | None:
    """Tell which rows the device will know after the round before; None if such a row has changed its slot."""
    if before is None:
        return [False] * len(rows)
    if before.rows == rows:
        return [True] * len(rows)
    known = (*before.rows, *[None] * (len(rows) - len(before.rows)))
    is_known = [row is other for row, other in zip(rows, known, strict=False)]
    num_known = sum(row is not None and not row.is_finished for row in before.rows)
    return is_known if sum(is_known) == num_known else None


def _plan_of(limits: Seq[int]) -> DraftPlan:
    return DraftPlan(tuple(limits), (False,) * len(limits))


def recordings_can_pick(params: SamplingParams) -> bool:
    """Tell whether a recording can pick tokens with these parameters."""
    return not params.logit_bias and not params.forbids_tokens


def start_of(row: Sequence, num_newest: int = 2) -> Start:
    """Return the state of a row, with as many newest tokens; its first one stands for those that it lacks."""
    tokens = row.token_ids
    *before, previous, newest = [*tokens[:1] * (num_newest - len(tokens)), *tokens[-num_newest:]]
    return Start(len(tokens), previous, newest, tuple(before))
