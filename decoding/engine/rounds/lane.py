"""Lane: rows that advance together, in slots of their own, a round at a time (`decoding/engine/rounds/round.py`).

    admission.advance ->  the rows that run: a chunk of the waiting prompts is read between any two rounds
    rounds.advance    ->  tokens and counts; a finished row's slot goes to a waiting row, before the next round

A lane does one thing at a time. Where that is done in another process (a draft actor, the target's stages), the lane
stops, and others go on meanwhile: with two lanes, one is drafted for while the other is verified.
"""

import os
import time
from collections import deque
from collections.abc import Iterator, Set
from collections.abc import Sequence as Seq

from decoding.cache.pages import NoPageError
from decoding.drafters.base import Drafter, NoDrafter
from decoding.drafters.hybrid import HybridDrafter
from decoding.drafters.in_turn import InTurn
from decoding.drafters.lookups.offers import LookupDrafter
from decoding.drafters.model import ModelDrafter
from decoding.drafters.stepwise import HeadDrafter
from decoding.engine.rounds.admission import Admission
from decoding.engine.rounds.commits import Commits
from decoding.engine.rounds.host_rounds import HostRounds
from decoding.engine.rounds.room import Room
from decoding.engine.rounds.round import Rounds, Running, Starter
from decoding.fused.recordings import CudaRecorder
from decoding.gpu.available import kernels_run_on
from decoding.network.language_model import LanguageModel
from decoding.network.target import Target
from decoding.pace.schedule import Schedule
from decoding.sampling.rows import Rule
from decoding.sequence import Sequence


class Lane:
    """Rows, their slots in a target and a drafter, and what is in flight of their round."""

    def __init__(
        self,
        target: Target,
        drafter: Drafter,
        schedules: Seq[Schedule],
        waiting: deque[Sequence],
        *,
        num_slots: int,
        max_model_len: int,
        max_prefill_tokens: int,
        rule: Rule,
        ahead: Starter | None = None,
        host: HostRounds | None = None,
    ) -> None:
        """Take rows from `waiting`, which lanes may share; target and drafter are this lane's own.

        There is one schedule, or one for each drafter that takes turns.
        `ahead` starts those rounds that it can before the last one is read; `host` the others (None: step by step).
        """
        self.target, self.drafter, self.schedules = target, drafter, schedules
        self.schedule = schedule = schedules[0]  # of the drafter whose turn it is
        self.running: Running = ()  # the rows of the last round
        self.host, self.ahead = host or HostRounds(target, drafter, rule, num_slots), ahead
        starters = [self.host] if ahead is None else [ahead, self.host]
        self.rounds = Rounds(starters, Commits(target, drafter, rule))
        self._max_model_len = max_model_len
        self._num_slots = self._max_rows = num_slots
        # A round that is under way may write as many tokens of a row, and so may the next one.
        room = Room(target, drafter, num_slots, waiting, num_ahead=2 * (1 + schedule.ceiling))
        self.admission = Admission(target, drafter, room, max_prefill_tokens)
        target.allocate(num_slots, max_model_len, schedule.ceiling)
        target.hand_out(drafter.tap)
        if target.cache is not None and target.cache.has_states:
            for each in schedules:
                each.heed_states()
        if self.host.has_dear_features and not isinstance(drafter, InTurn):  # whose trials know
            schedule.heed_features()
        self._turns: Iterator[None] | None = None  # where it stopped; None: before a round

    def advance(self, max_rows: int) -> list[Sequence]:
        """Go on until another process is asked, or to the end of a round; return the rows that have finished.

        Rows are admitted as long as no more than `max_rows` are in flight.
        """
        self._max_rows = max_rows
        if self._turns is None:
            self._turns = self._work()
        try:
            next(self._turns)
        except NoPageError:  # the rounds begin anew without the youngest row
            self.admission.room.give_way()
            self.running, self._turns = (), None
            self.rounds.drop()
        except BaseException:
            self._turns = None
            raise
        return [*self.admission.take_finished(), *self.rounds.take_finished()]

    def evict(self, rows: Set[Sequence]) -> list[Sequence]:
        """Take these rows out of their slots, and return them as they are, to be admitted again.

        Rounds that are under way are dropped; the other rows begin them anew. Where an error ended one, some rows may
        have finished in it: they are returned, too.
        """
        evicted = [sequence for sequence in self.admission.in_flight if sequence in rows]
        if evicted:
            self.admission.remove(set(evicted))
            self.running, self._turns = (), None
            self.rounds.drop()
        return [*evicted, *self.admission.take_finished(), *self.rounds.take_finished()]

    def renew(self) -> None:
        """Begin with empty slots: the target has lost what was in them."""
        self.clear()
        self._forget_caches()
        self.target.allocate(self._num_slots, self._max_model_len, self.schedule.ceiling)

    def renew_draft(self) -> None:
        """Begin anew with a draft that has other weights: what was learned of the earlier one is forgotten.

        A round that waits for a draft or for verdicts is dropped, too: what was planned for it is the earlier draft's.
        """
        self._turns = None
        self.rounds.drop()
        self.schedule.forget()
        self.host.end_rest()
        self.drafter.renew()
        if not self.schedule.would_draft(self._num_slots):
            self.drafter.rest()

    def close(self) -> None:
        """Give the slots' memory back."""
        self.clear()
        self._forget_caches()
        self.target.release()

    def clear(self) -> None:
        """Forget every row, and what is in flight: what to do after an advance that raised."""
        self.admission.clear()
        self.rounds.drop()
        self.rounds.take_finished()
        self.running, self._turns = (), None

    def _take_turn(self, drafter: InTurn) -> None:
        """Let the drafter draft that is to, as its schedule plans; what it reads first is a part of what it costs."""
        began, trials = time.perf_counter(), self.schedule.trials
        self.schedule = self.schedules[trials.drafter]
        if drafter.turn_to(trials.drafter, trials.awake, self.running):
            self.target.hand_out(drafter.tap)
            self.schedule.observe_waking(len(self.running), time.perf_counter() - began)
        if trials.prepared is not None:
            trials.is_prepared = drafter.is_prepared(trials.prepared, self.running)

    def _forget_caches(self) -> None:
        if self.ahead is not None:
            self.ahead.forget_caches()

    def _work(self) -> Iterator[None]:
        while True:
            running = tuple(self.admission.advance(self._max_rows))
            self.schedule.observe_reading(*self.admission.reader.take())
            if self.admission.room.take_given_way():
                self.rounds.drop()
            if running != self.running:
                self.running = running
            if running and isinstance(self.drafter, InTurn):
                self._take_turn(self.drafter)
            has_waited = bool(running) and (yield from self.rounds.advance(self.running, self.schedule))
            if not has_waited:  # else the next round's request goes out first
                yield


def divide_slots(num_slots: int, num_lanes: int) -> Seq[int]:
    """Return the slots of each lane: as equal as can be, and no lane without a slot."""
    num_lanes = min(num_lanes, num_slots)
    return [num_slots // num_lanes + (lane < num_slots % num_lanes) for lane in range(num_lanes)]


def recorded_rounds(
    target: Target, drafter: Drafter, rule: Rule, num_slots: int
) -> tuple[Starter | None, HostRounds | None]:
    """Return what starts recorded rounds of these, before the last one is read and behind that, if they can be."""
    if not kernels_run_on(target.device) or not can_be_recorded(target, drafter, rule):
        return None, None
    from decoding.engine.rounds.overlapped.planned_rounds import PlannedRounds
    from decoding.engine.rounds.overlapped.rounds_ahead import RoundsAhead  # Triton is only where the kernels run

    is_recorded = target.device.type == "cuda" and os.environ.get("DRAY_GRAPHS", "on") != "off"
    assert isinstance(target, LanguageModel)
    part = drafter.parts[-1]
    drafting = part if isinstance(part, ModelDrafter | HeadDrafter) else None
    looks_up = isinstance(drafter, LookupDrafter | HybridDrafter)
    ahead = RoundsAhead(target, drafting, num_slots, CudaRecorder() if is_recorded else None, looks_up=looks_up)
    return ahead, PlannedRounds(target, drafter, rule, num_slots, ahead)


def can_be_recorded(target: Target, drafter: Drafter, rule: Rule) -> bool:
    """Tell whether rounds of these can be recorded.

    The layers of target and draft must run on our GPU kernels, the draft must be a model with the target's tokens, a
    head that `takes_plans`, or none, each with a lookup or without, no close call may be decided by the host, and no
    other drafter may read the target's features.
    """
    if rule.text_depends_on_draft or not isinstance(target, LanguageModel) or target.close_call:
        return False
    models, part = [target], drafter.parts[-1]
    if isinstance(part, HeadDrafter):
        return part.head.takes_plans and target.fused is not None and target.fused.is_on_gpu
    if target.tap:
        return False
    if isinstance(part, ModelDrafter) and not part.vocabulary.is_mapped:
        models.append(part.model)
    elif not isinstance(part, NoDrafter | LookupDrafter):
        return False
    return all(model.fused is not None and model.fused.is_on_gpu for model in models)
