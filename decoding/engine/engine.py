"""Engine: sequences in, finished sequences out. What happens to them in between is in `decoding/engine/rounds/`.

An engine has one lane, or several where another process drafts or verifies: each goes on while others wait.

There is one way to survive. A row that loses its slot, because memory ran out and there are fewer slots now or because
the target lost what its slots held, waits in front of all others with the tokens that it has, and is admitted again by
reading prompt and output (docs/adr/0020).
"""

from collections.abc import Iterable, Set
from collections.abc import Sequence as Seq
from dataclasses import replace
from itertools import islice

from decoding.checkpoint.loading import DType
from decoding.choices import Turn
from decoding.device import Device, give_back_freed_memory
from decoding.drafters.base import Drafter
from decoding.drafters.lookups.prediction import problem_under
from decoding.engine.draft_in_use import DraftInUse
from decoding.engine.lanes import Costs, load_in_turn, make_lanes, measured_costs
from decoding.engine.load import Parts, RemoteDrafts, load_parts
from decoding.engine.options import DraftVocabulary, EngineOptions
from decoding.engine.rounds.lane import Lane
from decoding.engine.token_engine import Limits, TargetLostError, TokenEngine
from decoding.fused.live_weights import LiveWeights
from decoding.grammar.grammars import Grammars
from decoding.network.target import SlotsLostError, Target
from decoding.pace.learned import Learned
from decoding.sampling.rules import RULES
from decoding.sequence import Sequence

_MAX_LOSSES = 3  # of the target's slots, over rows that write nothing in between
_MAX_LOSSES_ALONE = 2  # over a scored row


class Engine(TokenEngine):
    """A draft and a target at work on sequences. Not thread-safe: one thread drives it."""

    def __init__(
        self,
        pairs: Seq[tuple[Target, Drafter]],
        options: EngineOptions,
        max_model_len: int,
        costs: Costs = None,
        grammars: Grammars | None = None,
    ) -> None:
        """Take a target and a drafter for each lane; without `costs` each row drafts the most tokens that it may.

        Without `grammars` no sequence may have one.
        """
        self.target = pairs[0][0]
        super().__init__(Limits(max_model_len, self.target.vocab_size, self.target.eos_token_ids), options)
        self._grammars = grammars
        self._parts: Parts | None = None
        self.fallback = ""  # as `Parts.fallback`
        self._losses: dict[Sequence, tuple[int, int]] = {}  # length of a row that lost its slot, and how often there
        self._final_loss: SlotsLostError | None = None  # a loss after which it makes no sense to go on
        self._earlier_round_seconds = 0.0  # of lanes that are gone
        self._learned_before: Learned | None = None  # in them
        self._heard = ""  # the leader that other engines told of last
        self.lanes = self._make_lanes(pairs, costs)
        self._draft: DraftInUse = DraftInUse(
            RULES[options.verification],
            lambda: [lane.schedule.recent_drafts for lane in self.lanes],
            self._live_weights,
            self._forget_draft,
        )

    @classmethod
    def load(
        cls,
        target: str,
        draft: str | None = None,
        options: EngineOptions | None = None,
        *,
        device: Device = "auto",
        dtype: DType = "auto",
        remote: RemoteDrafts | None = None,
        target_model: Target | None = None,
        num_lanes: int = 1,
        draft_vocabulary: DraftVocabulary = "same",
        tokenizer: str | None = None,
        turns: Seq[Turn] = (),
    ) -> "Engine":
        """Load an engine over the models at these paths. Raises ValueError if it cannot work.

        With `remote` the draft model is loaded there, not here. `target_model` is the one at `target`, where that is
        loaded and checked already; it keeps `num_lanes` lanes busy. A draft model with another tokenizer needs the
        `draft_vocabulary` "map". Grammars read the `tokenizer` in a folder, by default the target's. Drafters that take
        `turns` stand in the place of `draft`.
        """
        options = options or EngineOptions()

        def load(draft: str | None, options: EngineOptions, loaded: Target | None = None) -> Parts:
            model = target_model if loaded is None else loaded
            own = (device, dtype, remote, model, num_lanes, draft_vocabulary, tokenizer)
            return load_parts(target, draft, options, *own)

        return cls.over(load_in_turn(turns, options, load) if turns else load(draft, options), options)

    @classmethod
    def over(cls, parts: Parts, options: EngineOptions, costs: Costs = None) -> "Engine":
        """Make an engine over models that are loaded, which it then owns; `costs` are measured unless given."""
        pairs, found = measured_costs(parts, options, costs)
        engine = cls(pairs, options, parts.max_model_len, found, parts.grammars)
        engine._parts, engine.fallback = parts, parts.fallback
        give_back_freed_memory()
        return engine

    def resize(self, num_slots: int) -> None:
        """Go on with this many slots. Rows in flight wait for one of them, with the tokens that they have.

        If this raises, for lack of memory say, the engine has no slots, and the next step tries to make them.
        """
        assert self._parts is not None, "only an engine that was loaded can be resized"
        self.evict(self.in_flight)
        self._earlier_round_seconds = self.round_seconds
        self._learned_before = self.learned or self._learned_before
        while self.lanes:
            self.lanes.pop().close()
        for draft in {id(each.draft): each.draft for each in self._parts.in_turn}.values():
            if draft is not None:
                draft.release()
        self.options = replace(self.options, num_slots=num_slots)
        self._open(self._parts)

    def _open(self, parts: Parts) -> None:
        self.lanes = self._make_lanes(*measured_costs(parts, self.options))
        self._heard = ""
        self.hear(self._learned_before)
        give_back_freed_memory()

    def _make_lanes(self, pairs: Seq[tuple[Target, Drafter]], costs: Costs) -> list[Lane]:
        return make_lanes(pairs, self.options, self.max_model_len, costs, self._waiting)

    @property
    def learned(self) -> Learned | None:
        names, lanes, before = self._names, self.lanes[:1], self._learned_before  # any thread may ask
        if not names or not lanes:
            return None
        found = Learned.of(names, lanes[0].schedule.trials)
        return found if before is None else replace(found, tallies=Learned.together([found, before]).tallies)

    @property
    def left_out(self) -> tuple[str, ...]:
        """The drafts that were to take turns and cannot, and why."""
        return () if self._parts is None else self._parts.left_out

    @property
    def _names(self) -> list[str]:
        """The names of the drafters that take turns; none where one was asked for."""
        return [] if self._parts is None or not self._parts.name else [each.name for each in self._parts.in_turn]

    def hear(self, learned: Learned | None) -> None:
        if learned is not None and learned.leader != self._heard and (names := self._names) and self.lanes:
            self._heard = learned.leader  # once: who disagrees would try it at every word
            learned.teach(names, self.lanes[0].schedule.trials)

    def submit(self, sequences: Iterable[Sequence]) -> None:
        """Queue sequences, each with the matcher of its grammar."""
        sequences = list(sequences)
        super().submit(sequences)
        for sequence in sequences:
            if not sequence.is_finished and sequence.params.structured is not None and self._grammars is not None:
                sequence.matcher = self._grammars.matcher(sequence.params.structured)

    @property
    def _asks_for_others(self) -> bool:
        return True

    @property
    def _stoppable(self) -> list[Sequence]:
        return [sequence for lane in self.lanes for sequence in lane.admission.filling]

    def _stop(self, sequences: Set[Sequence]) -> None:
        for lane in self.lanes:
            lane.admission.forget(sequences)

    def evict(self, sequences: Iterable[Sequence]) -> None:
        """Take rows out of their slots: they wait in front of all others, and go on from the tokens that they have."""
        rows = set(sequences)
        taken = [sequence for lane in self.lanes for sequence in lane.evict(rows)]
        taken.sort(key=lambda sequence: sequence.asked is None)  # scored rows first: some may have to run alone
        self._end(sequence for sequence in taken if sequence.is_finished)
        self._waiting.extendleft(sequence for sequence in reversed(taken) if not sequence.is_finished)

    @property
    def close_call(self) -> float:
        return self.target.close_call

    @property
    def controls_drafts(self) -> bool:
        return True

    @property
    def has_remote_drafts(self) -> bool:
        return self._parts is not None and self._parts.remote is not None

    @property
    def in_flight(self) -> list[Sequence]:
        return [sequence for lane in self.lanes for sequence in lane.admission.in_flight]

    @property
    def round_seconds(self) -> float:
        """Seconds spent in rounds: drafting, scoring, verifying and committing, not reading prompts."""
        return self._earlier_round_seconds + sum(lane.rounds.seconds for lane in self.lanes)

    def up_next(self) -> set[Sequence]:
        """Return the waiting sequences that get a slot in the next step: one at most while scored rows run alone."""
        if self._suspects:
            return set(islice(tuple(self._waiting), max(0, 1 - len(self.in_flight))))
        return super().up_next()

    def step(self) -> list[Sequence]:
        """Read a chunk of what waits, advance the rows that can run by one round at most, and return the finished ones.

        With several lanes, each goes on until it must wait for another process. Raises TargetLostError where rows were
        in flight at too many losses of the target without having written anything in between.
        """
        if not self.lanes and self._parts is not None:
            self._open(self._parts)
        try:
            for lane in self.lanes:
                num_rows = len(self.in_flight) + len(self._waiting)
                most = int(lane is self.lanes[0]) if self._suspects else -(-num_rows // len(self.lanes))
                self._end(lane.advance(max_rows=most))
        except SlotsLostError as lost:
            self._readmit(lost)
        self._draft.judge()
        if self._final_loss is not None:
            loss, self._final_loss = self._final_loss, None
            often = f"{_MAX_LOSSES} times over rows that wrote nothing in between"
            raise TargetLostError(f"the target was lost {often}: {loss}") from loss
        return self._take_ended()

    def _end(self, sequences: Iterable[Sequence]) -> None:
        """Let the next step return these, with the version of the draft in use."""
        for sequence in sequences:
            sequence.draft_version = self.draft_version
            sequence.matcher = None  # its memory
            self._ended.append(sequence)

    def _live_weights(self) -> LiveWeights:
        draft = None if self._parts is None or self._parts.others else self._parts.draft
        live = draft.weights if draft is not None else self.lanes[0].drafter.weights if self.lanes else None
        if live is None:
            where = "in another process" if self.has_remote_drafts else "without a draft model or head"
            where = "with several drafters in turn" if self._names else where
            raise ValueError(f"the engine drafts {where}, so it has no weights of a draft to replace")
        return live

    def _forget_draft(self) -> None:
        if any(lane.drafter.tap is not None for lane in self.lanes):  # the target hands features out as it reads
            self.evict(self.in_flight)
            for lane in self.lanes:
                lane.admission.clear()
        for lane in self.lanes:
            lane.renew_draft()

    def _readmit(self, lost: SlotsLostError) -> None:
        """Let a target that lost its slots read all rows again; record it if that has not helped too often.

        Scored rows that were in flight run alone until they have ended, since any of them may be the reason. One over
        which the target is lost again then ends with an error.
        """
        rows, before = self.in_flight, self._losses
        self._losses = {row: before[row] for row in self._suspects}
        for row in rows:
            length = len(row) if row.asked is None else len(row.asked.found)
            before_length, num_losses = before.get(row, (length, 0))
            self._losses[row] = length, 1 + num_losses * (length == before_length)
        self.evict(rows)
        lost_again = [row for row in self._suspects if self._losses[row][1] >= _MAX_LOSSES_ALONE]
        self.drop(lost_again, f"the target was lost over this text, twice: {lost}")
        for lane in self.lanes:
            lane.renew()
        if any(num_losses >= _MAX_LOSSES for row, (_, num_losses) in self._losses.items() if row.asked is None):
            self._final_loss = lost

    @property
    def _suspects(self) -> list[Sequence]:
        return [row for row in self._losses if row.asked is not None and not row.is_finished]

    def clear(self) -> None:
        super().clear()
        self._losses.clear()
        self._final_loss = None
        for lane in self.lanes:
            lane.clear()

    def problem_with(self, sequence: Sequence) -> str | None:
        """Return why the engine cannot run this sequence, as `TokenEngine.problem_with`; its grammar is compiled."""
        problem = problem_under(self.options.verification, sequence) or self._limits.problem_with(sequence)
        structured = sequence.params.structured
        if problem is not None or structured is None:
            return problem
        if self._grammars is None:
            return "sampling.structured is set, but the engine has no tokenizer; load it with Engine.load"
        return self._grammars.problem_with(structured)
