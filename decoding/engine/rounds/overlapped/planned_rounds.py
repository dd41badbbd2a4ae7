"""PlannedRounds: rounds on a GPU that the host must plan: it looks tokens up, or knows what grammars allow.

Each is read before the next one starts, since the host must know the newest tokens. Yet what they start is the same
recordings (`rounds.py` beside this file): what is looked up or forced by a grammar goes to the device with the rows'
states, in one copy, and masks in another one, which are computed while the target reads. A draft model or head drafts
without masks, and its tokens are read before those of the target are computed.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from decoding.drafters.base import Drafter
from decoding.drafters.hybrid import unless_looked_up
from decoding.engine.rounds.host_rounds import HostRound, HostRounds
from decoding.engine.rounds.overlapped.counts import SlotCounts
from decoding.engine.rounds.overlapped.grammars import GrammarBuffers, RoundGrammars
from decoding.engine.rounds.overlapped.inputs import RoundInputs
from decoding.engine.rounds.overlapped.rounds_ahead import RoundsAhead, recordings_can_pick, start_of
from decoding.engine.rounds.overlapped.steps import DraftSteps
from decoding.engine.rounds.round import Decided, Running, Started
from decoding.network.language_model import LanguageModel
from decoding.pace.schedule import Schedule
from decoding.sampling.rows import Rule


@dataclass
class _PlannedRound(HostRound):
    """A round on the device that the host has planned."""

    limits: Seq[int]  # tokens of each row that the steps may have drafted
    given: Seq[list[int]]  # tokens of each row that the host has drafted
    steps: DraftSteps | None
    is_level: Seq[bool]  # as in a round that overlaps
    counts: SlotCounts | None
    grammars: RoundGrammars | None

    def read(self, running: Running, newer: Started | None) -> list[Decided]:
        decided, num_steps = super().read(running, newer), max(self.limits)
        corrected = [] if self.grammars is None else self.grammars.corrected  # the device has other tokens
        for slot, sequence, verdict in decided:
            if verdict.is_finite and self.steps is not None and self.is_level[slot]:
                num_drafted = min(num_steps, 1) if self.given[slot] else num_steps
                self.steps.note(slot, slot, sequence, verdict, num_drafted)
                if slot in corrected:
                    self.steps.take_back(slot)
            if verdict.is_finite and self.counts is not None and slot not in corrected:
                self.counts.note(slot, sequence, verdict.num_accepted + 1)
        return decided


class PlannedRounds(HostRounds):
    """Rounds of a target and a drafter that `can_be_recorded` (`decoding/engine/rounds/lane.py`)."""

    def __init__(self, target: LanguageModel, drafter: Drafter, rule: Rule, num_slots: int, ahead: RoundsAhead) -> None:
        """Share the recordings of `ahead`, with the steps of the same draft."""
        super().__init__(target, drafter, rule, num_slots)
        self._model, self._ahead, self._num_slots = target, ahead, num_slots

    def start(self, rows: Running, schedule: Schedule, before: Started | None) -> Started:
        """Start the recordings of a round; one that cannot be recorded is started step by step."""
        assert self._planned is not None, "`ask` comes first"
        planned, plan, asked, forced = self._planned
        # Only with a prediction: a head's ring has no room for it, and the buffers of logits and masks have none.
        is_too_long = max(plan.lengths) > schedule.ceiling and (planned.have_grammars or self._drafter.tap is not None)
        if is_too_long or not all(recordings_can_pick(row.params) for row in rows):
            return super().start(rows, schedule, before)
        self._planned, is_resting = None, self._num_rested > 0
        given = [[] for _ in rows] if is_resting else self._drafter.without_model(asked)
        if forced:
            forced = unless_looked_up(forced, given)
            given = [tokens or own for tokens, own in zip(forced, given, strict=True)]
            plan = plan.replaced([len(tokens) for tokens in forced])
        if self._num_rested == 1:
            self._drafter.rest()
        device_rounds = self._ahead.over_caches(schedule)
        steps, is_level, limits, num_newest = device_rounds.steps, [False] * len(rows), [0] * len(rows), 2
        if steps is not None:
            of_rows = zip(rows, asked.num_draft_tokens, asked.uses_lookup, given, strict=True)
            limits = [0 if up or own else max(0, min(most, steps.max_len - len(row))) for row, most, up, own in of_rows]
            is_level, num_newest = steps.level(rows, limits)
            limits = [min(limit, steps.most) if level else 0 for limit, level in zip(limits, is_level, strict=True)]
        starts = {slot: start_of(row, num_newest) for slot, row in enumerate(rows)}
        inputs = RoundInputs(limits, [True] * len(rows), starts, given if any(given) else (), num_newest)
        table = planned.sampling.table
        assert table is not None, "the kernels that pick have one"
        counts = device_rounds.counts if any(table.uses_counts) else None
        if counts is not None:
            counts.bring(list(enumerate(rows)))
        assert self._model.cache is not None, "allocate() comes first"
        self._model.cache.hold(range(len(rows)), [len(row) - 1 for row in rows], [1 + n for n in inputs.lengths])
        num_visible = max(len(row) for row in rows) + inputs.num_drafted + 1
        num_logprobs = tuple(row.params.logprobs for row in rows)
        grammars = None
        if planned.have_grammars:
            if device_rounds.grammar_buffers is None:
                sizes = self._num_slots, schedule.ceiling, self._model.vocab_size
                device_rounds.grammar_buffers = GrammarBuffers(*sizes, self._model.device)
            grammars = RoundGrammars(planned, num_logprobs, device_rounds.grammar_buffers)
        verdicts = device_rounds.start(inputs, table, num_visible, num_logprobs, grammars)
        drafter, is_forcing = None if is_resting else self._drafter, self._forces(planned)
        of_host = rows, plan, verdicts, schedule, drafter, asked, forced, is_forcing, 0.0
        return _PlannedRound(*of_host, limits, given, steps, is_level, counts, grammars)
