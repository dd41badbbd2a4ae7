"""Engine: sequences in, finished sequences out. What happens to them in between is in `decoding/engine/round.py`.

An engine has one lane, or several where another process drafts or verifies: each goes on while others wait.

There is one way to survive. A row that loses its slot, because memory ran out and there are fewer slots now or because
the target lost what its slots held, waits in front of all others with the tokens that it has, and is admitted again by
reading prompt and output (docs/adr/0020).
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace
from itertools import islice

import torch

from decoding.checkpoint.loading import DType
from decoding.device import Device, give_back_freed_memory
from decoding.drafters import Drafter
from decoding.engine.draft_in_use import DraftInUse, DraftRollback
from decoding.engine.lane import Lane, divide_slots
from decoding.engine.limits import Limits
from decoding.engine.load import Parts, RemoteDrafts, load_parts
from decoding.engine.make_lane import make_lane
from decoding.engine.measured_costs import measure_costs, with_overhead, with_remote_drafts
from decoding.engine.options import DraftVocabulary, EngineOptions
from decoding.fused.live_weights import LiveWeights
from decoding.grammar.grammars import Grammars
from decoding.network.target import SlotsLostError, Target
from decoding.pace.cost_table import CostTable
from decoding.pace.schedule import AdaptiveSchedule, FixedSchedule
from decoding.sampling.rules import RULES
from decoding.sampling_params import SamplingParams
from decoding.scoring.scorer import Scorer
from decoding.scoring.text import ScoredText
from decoding.sequence import Sequence

# Prompt tokens between two rounds, on CPU and elsewhere: a chunk that uses the device well and keeps the running rows
# waiting for about as long as a few rounds.
_MAX_PREFILL_TOKENS = (512, 2048)
_MAX_LOSSES = 3  # of the target's slots, over rows that write nothing in between


class TargetLostError(RuntimeError):
    """The target is lost over the same rows again and again: one of them is the reason, or the target cannot run."""


class Engine:
    """A draft and a target at work on sequences. Not thread-safe: one thread drives it."""

    def __init__(
        self,
        pairs: Seq[tuple[Target, Drafter]],
        options: EngineOptions,
        max_model_len: int,
        costs: CostTable | None = None,
        grammars: Grammars | None = None,
    ) -> None:
        """Take a target and a drafter for each lane; without `costs` each row drafts the most tokens that it may.

        Without `grammars` no sequence may have one.
        """
        self.options = options
        self.max_model_len = max_model_len
        self.target = pairs[0][0]
        self._limits = Limits(max_model_len, self.target.vocab_size, self.target.eos_token_ids)
        self._grammars = grammars
        self._parts: Parts | None = None
        self._scorer = self._make_scorer()
        self._ended: list[Sequence] = []  # the next step returns them
        self._waiting: deque[Sequence] = deque()
        self._losses: dict[Sequence, tuple[int, int]] = {}  # length of a row that lost its slot, and how often there
        self._final_loss: SlotsLostError | None = None  # a loss after which it makes no sense to go on
        self._earlier_round_seconds = 0.0  # of lanes that are gone
        self.lanes = self._make_lanes(pairs, costs)
        self._draft = DraftInUse(
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
    ) -> "Engine":
        """Load an engine over the models at these paths. Raises ValueError if it cannot work.

        With `remote` the draft model is loaded there, not here. `target_model` is the one at `target`, where that is
        loaded and checked already; it keeps `num_lanes` lanes busy. A draft model with another tokenizer needs the
        `draft_vocabulary` "map". Grammars read the `tokenizer` in a folder, by default the target's.
        """
        options = options or EngineOptions()
        parts = load_parts(
            target,
            draft,
            options,
            device,
            dtype,
            remote,
            target_model,
            num_lanes,
            draft_vocabulary=draft_vocabulary,
            tokenizer=tokenizer,
        )
        return cls.over(parts, options)

    @classmethod
    def over(cls, parts: Parts, options: EngineOptions) -> "Engine":
        """Make an engine over models that are loaded, which it then owns; costs are measured where drafts adapt."""
        pairs, costs = _measured(parts, options)
        engine = cls(pairs, options, parts.max_model_len, costs, parts.grammars)
        engine._parts = parts
        give_back_freed_memory()
        return engine

    def resize(self, num_slots: int) -> None:
        """Go on with this many slots. Rows in flight wait for one of them, with the tokens that they have.

        If this raises, for lack of memory say, the engine has no slots, and the next step tries to make them.
        """
        assert self._parts is not None, "only an engine that was loaded can be resized"
        self.evict(self.in_flight)
        self._earlier_round_seconds = self.round_seconds
        while self.lanes:
            self.lanes.pop().close()
        self._scorer.go_back(None)
        if self._parts.draft is not None:
            self._parts.draft.release()
        self.options = replace(self.options, num_slots=num_slots)
        self._scorer.shrink(num_slots)
        self._open(self._parts)

    def _open(self, parts: Parts) -> None:
        self.lanes = self._make_lanes(*_measured(parts, self.options))
        give_back_freed_memory()

    def _make_scorer(self) -> Scorer:
        most = self.options.max_prefill_tokens or _MAX_PREFILL_TOKENS[self.target.runs_on != "cpu"]
        # By the first lane's target, where a loss may have replaced it.
        return Scorer(lambda: self.target.share(), most, self.max_model_len, self.options.num_slots)

    def _make_lanes(self, pairs: Seq[tuple[Target, Drafter]], costs: CostTable | None) -> list[Lane]:
        slots, most = divide_slots(self.options.num_slots, len(pairs)), self.options.num_speculative_tokens
        budget = self.options.max_prefill_tokens or _MAX_PREFILL_TOKENS[self.target.runs_on != "cpu"]
        lanes = []
        for (target, drafter), num_slots in zip(pairs[: len(slots)], slots, strict=True):
            schedule = FixedSchedule(most) if costs is None else AdaptiveSchedule(costs, most)
            if not schedule.would_draft(num_slots):
                drafter.rest()
            lanes.append(
                make_lane(
                    target,
                    drafter,
                    schedule,
                    self._waiting,
                    num_slots=num_slots,
                    max_model_len=self.max_model_len,
                    max_prefill_tokens=-(-budget // len(slots)),
                    rule=RULES[self.options.verification],
                )
            )
        return lanes

    def generate(self, prompts: Seq[Seq[int]], params: SamplingParams, *, seed: int = 0) -> list[Sequence]:
        """Return every prompt's `params.n` samples, in order; row and sample numbers go into the noise."""
        sequences = [
            Sequence.create(prompt, params, run_seed=seed, row=row, sample=sample)
            for row, prompt in enumerate(prompts)
            for sample in range(params.n)
        ]
        list(self.stream(sequences))
        return sequences

    def stream(self, sequences: Iterable[Sequence]) -> Iterator[Sequence]:
        """Yield the sequences as they finish. A caller that stops early leaves the rest in the engine (see `clear`)."""
        self.submit(sequences)
        while self.has_work:
            yield from self.step()

    def submit(self, sequences: Iterable[Sequence]) -> None:
        """Queue sequences. One that cannot run comes back from the next step with finish_reason 'error'."""
        for sequence in sequences:
            if not sequence.is_finished and (problem := self.problem_with(sequence)):
                sequence.fail(problem)
            if sequence.is_finished:  # perhaps it failed before it came
                self._ended.append(sequence)
            else:
                sequence.max_tokens = min(sequence.max_tokens, self.max_model_len - len(sequence.prompt_token_ids))
                if sequence.params.structured is not None and self._grammars is not None:
                    sequence.matcher = self._grammars.matcher(sequence.params.structured)
                self._waiting.append(sequence)

    def score(self, texts: Iterable[ScoredText]) -> None:
        """Score texts, and return when all are finished. No sequence is touched."""
        self.submit_texts(texts)
        while self.has_texts:
            self.step_texts()

    def submit_texts(self, texts: Iterable[ScoredText]) -> None:
        """Queue texts to be scored. One that cannot be comes back from the next step of texts with an error."""
        texts = list(texts)
        for text in texts:
            if not text.is_finished and (problem := self.problem_with_text(text)):
                text.fail(problem)
        self._scorer.submit(texts)

    @property
    def has_texts(self) -> bool:
        """Whether there are texts that `step_texts` would advance or return."""
        return self._scorer.has_work

    def step_texts(self) -> list[ScoredText]:
        """Advance texts by one forward, and return those that are finished, each with its scores or an error.

        If the target loses its slots, its rows are read again, as in a step.
        """
        try:
            return self._scorer.advance()
        except SlotsLostError as lost:
            self._readmit(lost, scoring=True)
            return self._scorer.take_ended()

    def drop_texts(self, texts: Iterable[ScoredText]) -> None:
        """Forget texts that are not wanted; they do not come back."""
        self._scorer.drop(set(texts))

    def give_way(self, why: str) -> None:
        """Go on with each text in flight alone, after a step of texts that raised; one that was alone fails by `why`.

        Their slots are given back meanwhile.
        """
        self._scorer.go_back(why)

    def clear_texts(self) -> None:
        """Forget all texts: what to do after a step of texts that raised, before the engine scores again."""
        self._scorer.clear()

    def problem_with_text(self, text: ScoredText) -> str | None:
        """Return why the engine cannot score this text; None if it can. Any thread may ask."""
        return self._limits.problem_with_text(text)

    def drop(self, sequences: Iterable[Sequence], why: str = "it was dropped") -> None:
        """Drop sequences that are not wanted. Each comes back from a step, as it would have; none is a result.

        Those that have no slot, or are still being read, end at once: with finish_reason 'error', and `why`. Those that
        write end with their next token.
        """
        unwanted = set(sequences)
        waiting = [sequence for sequence in self._waiting if sequence in unwanted]
        kept = [sequence for sequence in self._waiting if sequence not in unwanted]
        reading = [sequence for lane in self.lanes for sequence in lane.forget(unwanted)]
        for sequence in (*waiting, *reading):
            sequence.fail(why)
            self._ended.append(sequence)
        self._waiting.clear()  # the same queue: lanes share it
        self._waiting.extend(kept)
        for sequence in unwanted.intersection(self.in_flight):
            sequence.cut_short()

    def evict(self, sequences: Iterable[Sequence]) -> None:
        """Take rows out of their slots: they wait in front of all others, and go on from the tokens that they have."""
        rows = set(sequences)
        taken = [sequence for lane in self.lanes for sequence in lane.evict(rows)]
        self._end(sequence for sequence in taken if sequence.is_finished)
        self._waiting.extendleft(sequence for sequence in reversed(taken) if not sequence.is_finished)

    def up_next(self) -> set[Sequence]:
        """Return the waiting sequences that get a slot in the next step."""
        num_free = self.options.num_slots - len(self.in_flight) if self._waiting else 0
        return set(islice(tuple(self._waiting), num_free))

    @property
    def vocab_size(self) -> int:
        """Token ids of the target."""
        return self.target.vocab_size

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """The token ids that end a text."""
        return self.target.eos_token_ids

    @property
    def close_call(self) -> float:
        """The margin in logits within which rounding could decide between two tokens; 0 if that is not known."""
        return self.target.close_call

    @property
    def is_lost(self) -> bool:
        """Whether nothing can run any more: never, since rows are read again when the target has lost them."""
        return False

    @property
    def controls_drafts(self) -> bool:
        """Whether a sequence may limit its own drafts, and learns what was rejected of them: always."""
        return True

    @property
    def has_remote_drafts(self) -> bool:
        return self._parts is not None and self._parts.remote is not None

    @property
    def has_work(self) -> bool:
        """Whether a step would return or advance anything."""
        return bool(self.num_running or self._waiting or self._ended)

    @property
    def num_running(self) -> int:
        """Rows in flight: those that write, and those whose prompts are being read."""
        return len(self.in_flight)

    @property
    def in_flight(self) -> list[Sequence]:
        """The sequences that hold a slot and are not finished."""
        return [sequence for lane in self.lanes for sequence in lane.admission.in_flight]

    @property
    def round_seconds(self) -> float:
        """Seconds spent in rounds: drafting, scoring, verifying and committing, not reading prompts."""
        return self._earlier_round_seconds + sum(lane.rounds.seconds for lane in self.lanes)

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
                self._end(lane.advance(max_rows=-(-num_rows // len(self.lanes))))
        except SlotsLostError as lost:
            self._readmit(lost)
        self._draft.judge()
        if self._final_loss is not None:
            loss, self._final_loss = self._final_loss, None
            raise TargetLostError(
                f"the target was lost {_MAX_LOSSES} times over rows that wrote nothing in between: {loss}"
            ) from loss
        finished, self._ended = self._ended, []
        return finished

    def _end(self, sequences: Iterable[Sequence]) -> None:
        """Let the next step return these, with the version of the draft in use."""
        for sequence in sequences:
            sequence.draft_version = self.draft_version
            sequence.matcher = None  # its memory
            self._ended.append(sequence)

    @property
    def draft_version(self) -> int:
        """Version of the draft in use; 0 for the one that the engine was loaded with."""
        return self._draft.version

    def replace_draft(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Go on with other weights of the same draft, between two steps; no token changes.

        The names are those of the network's or head's own tensors. If fewer than half as many of its tokens are
        accepted in its first 200 rounds as before, the weights before come back (`take_rollback`). Raises ValueError,
        in one line, for what is no such draft; nothing has changed then.
        """
        self._draft.replace(weights, version)

    def draft_was_replaced(self, version: int) -> None:
        """Learn that the draft in another process has other weights now; acceptance is judged as in `replace_draft`."""
        self._draft.was_replaced(version)

    def take_rollback(self) -> DraftRollback | None:
        """Return a draft that was taken back, each once; None if there is none. Any thread may ask."""
        return self._draft.take_rollback()

    def _live_weights(self) -> LiveWeights:
        draft = None if self._parts is None else self._parts.draft
        live = draft.weights if draft is not None else self.lanes[0].drafter.weights if self.lanes else None
        if live is None:
            where = "in another process" if self.has_remote_drafts else "without a draft model or head"
            raise ValueError(f"the engine drafts {where}, so it has no weights of a draft to replace")
        return live

    def _forget_draft(self) -> None:
        if any(lane.drafter.tap is not None for lane in self.lanes):  # the target hands features out as it reads
            self.evict(self.in_flight)
            for lane in self.lanes:
                lane.admission.clear()
        for lane in self.lanes:
            lane.renew_draft()

    def _readmit(self, lost: SlotsLostError, *, scoring: bool = False) -> None:
        """Let a target that lost its slots read all rows again; record it if that has not helped too often."""
        rows, before = self.in_flight, self._losses
        self._losses = {}
        for row in rows:
            length, num_losses = before.get(row, (len(row), 0))
            self._losses[row] = len(row), 1 + num_losses * (length == len(row))
        self.evict(rows)
        self._scorer.go_back(f"the target was lost over this text, twice: {lost}" if scoring else None, is_loss=True)
        for lane in self.lanes:
            lane.renew()
        if any(num_losses >= _MAX_LOSSES for _, num_losses in self._losses.values()):
            self._final_loss = lost

    def clear(self) -> None:
        """Forget every sequence: what to do after a step that raised, before the engine is used again."""
        self._waiting.clear()
        self._ended.clear()
        self._losses.clear()
        self._final_loss = None
        for lane in self.lanes:
            lane.clear()

    def problem_with(self, sequence: Sequence) -> str | None:
        """Return why the engine cannot run this sequence; None if it can. Any thread may ask.

        The grammar of its output is compiled for this.
        """
        problem, structured = self._limits.problem_with(sequence), sequence.params.structured
        if problem is not None or structured is None:
            return problem
        if self._grammars is None:
            return "sampling.structured is set, but the engine has no tokenizer; load it with Engine.load"
        return self._grammars.problem_with(structured)


def _measured(parts: Parts, options: EngineOptions) -> tuple[list[tuple[Target, Drafter]], CostTable | None]:
    """Return a target and a drafter for each lane, and what they cost where draft lengths adapt."""
    costs: CostTable | None = None
    slots, most = divide_slots(options.num_slots, parts.num_lanes), options.num_speculative_tokens
    if options.draft_length == "adaptive" and parts.drafter_name != "none":
        parts.target.allocate(slots[0], parts.max_model_len)
        drafter = parts.make_drafter(0, slots[0])
        parts.target.hand_out(drafter.tap)
        costs = measure_costs(parts.target, parts.draft, slots[0], most)
        timed_drafter = drafter if parts.draft is not None else None
        costs = with_overhead(costs, parts.target, timed_drafter, slots[0], most, RULES[options.verification])
        if drafter.is_remote:
            costs = with_remote_drafts(costs, drafter, parts.target.device, slots[0], most)
    pairs = [(parts.target_of(lane), parts.make_drafter(lane, num_slots)) for lane, num_slots in enumerate(slots)]
    return pairs, costs
