"""Engine: sequences in, finished sequences out. What happens to them in between is in `decoding/engine/lane.py`.

An engine has one lane, or several where another process drafts or verifies: each goes on while others wait.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import replace
from itertools import chain, islice

from decoding.checkpoint.loading import DType
from decoding.device import Device, give_back_freed_memory
from decoding.drafters import Drafter
from decoding.engine.costs import measure_costs
from decoding.engine.engine_costs import with_overhead
from decoding.engine.lane import Lane, share_out
from decoding.engine.load import Parts, RemoteDrafts, load_parts
from decoding.engine.options import EngineOptions
from decoding.engine.remote_costs import with_remote_drafts
from decoding.network.target import Target
from decoding.pace.cost_table import CostTable
from decoding.pace.schedule import AdaptiveSchedule, FixedSchedule
from decoding.sampling_params import SamplingParams
from decoding.sequence import Sequence, TokenLogprobs

# Prompt tokens between two rounds: a chunk that uses the device well and keeps the running rows waiting for about as
# long as a few rounds. On CPU, and elsewhere.
_MAX_PREFILL_TOKENS = (512, 2048)
_SCORED_AT_ONCE = 1 << 24  # logits of a prompt that is only scored: bounds their memory (64 MB in float32)


class PromptError(ValueError):
    """A prompt that the engine cannot read; the message says why. Nothing else that fails raises it."""


class Engine:
    """Runs sequences through a draft and a target. Not thread-safe: one thread drives it."""

    def __init__(self, parts: Seq[tuple[Target, Drafter]], options: EngineOptions, max_model_len: int) -> None:
        """Over a target and a drafter for each lane. Use `load` unless you bring your own."""
        self.options = options
        self.max_model_len = max_model_len
        self.target = parts[0][0]
        self._parts: Parts | None = None
        self._scorer: Target | None = None  # the target with a slot for prompts that are only scored
        self._refused: list[Sequence] = []
        self._waiting: deque[Sequence] = deque()
        slots = share_out(options.num_slots, len(parts))
        budget = options.max_prefill_tokens or _MAX_PREFILL_TOKENS[self.target.runs_on != "cpu"]
        self.lanes = [
            Lane(
                target,
                drafter,
                FixedSchedule(options.num_speculative_tokens),
                self._waiting,
                num_slots=num_slots,
                max_model_len=max_model_len,
                max_prefill_tokens=-(-budget // len(slots)),
                verification=options.verification,
            )
            for (target, drafter), num_slots in zip(parts[: len(slots)], slots, strict=True)
        ]

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
    ) -> "Engine":
        """An engine over the models at these paths; a ValueError, before anything is generated, if it cannot work.

        With `remote` the draft model is loaded there, not here. `target_model` is the one at `target`, where that is
        loaded and checked already; it keeps `num_lanes` lanes busy.
        """
        options = options or EngineOptions()
        return cls._over(load_parts(target, draft, options, device, dtype, remote, target_model, num_lanes), options)

    @classmethod
    def _over(cls, parts: Parts, options: EngineOptions) -> "Engine":
        costs: CostTable | None = None
        slots, most = share_out(options.num_slots, parts.num_lanes), options.num_speculative_tokens
        if options.draft_length == "adaptive" and parts.drafter_name != "none":
            parts.target.allocate(slots[0], parts.max_model_len)
            drafter = parts.make_drafter(0, slots[0])
            costs = with_overhead(
                measure_costs(parts.target, parts.draft, slots[0], most),
                parts.target,
                drafter if parts.draft is not None else None,
                slots[0],
                most,
                options.verification,
            )
            if drafter.is_remote:
                costs = with_remote_drafts(costs, drafter, parts.target.device, slots[0], most)
        lanes = [(parts.target_of(lane), parts.make_drafter(lane, num_slots)) for lane, num_slots in enumerate(slots)]
        engine = cls(lanes, options, parts.max_model_len)
        engine._parts = parts
        if costs is not None:
            for lane, num_slots in zip(engine.lanes, slots, strict=True):
                schedule = AdaptiveSchedule(costs, most)
                lane.schedule = schedule
                if not schedule.would_draft(num_slots):
                    lane.drafter.rest()
        give_back_freed_memory()
        return engine

    def with_slots(self, num_slots: int) -> "Engine":
        """A new engine over the same models, for so many rows; this one and its sequences are gone."""
        assert self._parts is not None, "only an engine that was loaded can be made anew"
        self.clear()
        for lane in self.lanes:
            lane.target.release()
        if self._scorer is not None:
            self._scorer.release()
            self._scorer = None
        self.lanes.clear()
        if self._parts.draft is not None:
            self._parts.draft.release()
        return self._over(self._parts, replace(self.options, num_slots=num_slots))

    def generate(self, prompts: Seq[Seq[int]], params: SamplingParams, *, seed: int = 0) -> list[Sequence]:
        """Every prompt's `params.n` samples, in the order of the prompts. Row and sample numbers go into the noise."""
        sequences = [
            Sequence.create(prompt, params, run_seed=seed, row=row, sample=sample)
            for row, prompt in enumerate(prompts)
            for sample in range(params.n)
        ]
        for _ in self.stream(sequences):
            pass
        return sequences

    def stream(self, sequences: Iterable[Sequence]) -> Iterator[Sequence]:
        """The sequences as they finish. Whoever stops early leaves the rest in the engine (`clear` drops them)."""
        self.submit(sequences)
        while self.has_work:
            yield from self.step()

    def submit(self, sequences: Iterable[Sequence]) -> None:
        """Queue sequences. One that cannot run comes back from the next step with finish_reason 'error'."""
        for sequence in sequences:
            if sequence.is_finished:  # failed before it came
                self._refused.append(sequence)
                continue
            problem = self.problem_with(sequence)
            if problem is None:
                sequence.max_tokens = min(sequence.max_tokens, self.max_model_len - len(sequence.prompt_token_ids))
                self._waiting.append(sequence)
            else:
                sequence.fail(problem)
                self._refused.append(sequence)

    def prompt_logprobs(self, prompt_token_ids: Seq[int], num_top: int) -> Iterator[list[TokenLogprobs]]:
        """Of each token of a prompt but its first, given those before it, a chunk at a time, with `num_top` others.

        No sequence is touched. One at a time: all share a slot, which is kept from the first time on. Raises
        PromptError for a prompt that the engine cannot read.
        """
        problem = self._problem_with_prompt(prompt_token_ids, self.max_model_len)
        if problem is not None:
            raise PromptError(problem)
        if self._scorer is None:
            assert self.lanes, "with_slots() has taken this engine apart"
            scorer = self.target.share()
            scorer.allocate(1, self.max_model_len)
            self._scorer = scorer
        size = max(1, min(_MAX_PREFILL_TOKENS[0], _SCORED_AT_ONCE // self.target.vocab_size))
        for start in range(0, len(prompt_token_ids) - 1, size):
            end = min(start + size, len(prompt_token_ids) - 1)
            following = prompt_token_ids[start + 1 : end + 1]
            if self._scorer is None:
                raise RuntimeError("memory ran out for the sequences that run, and the engine was made anew")
            yield self._scorer.logprobs(start, prompt_token_ids[start:end], following, num_top)

    def drop(self, sequences: Iterable[Sequence]) -> None:
        """Spend no more on these, which nobody wants. Each comes back from a step, as it would have; none is a result.

        Those that do not write yet end at once, with finish_reason 'error': nothing more of their prompts is read.
        Those that write end with their next token.
        """
        unwanted = set(sequences)
        waiting = [sequence for sequence in self._waiting if sequence in unwanted]
        kept = [sequence for sequence in self._waiting if sequence not in unwanted]
        reading = [sequence for lane in self.lanes for sequence in lane.admission.forget(unwanted)]
        for sequence in (*waiting, *reading):
            sequence.fail("it was dropped before it began")
            self._refused.append(sequence)
        self._waiting.clear()  # the same queue: lanes share it
        self._waiting.extend(kept)
        for sequence in unwanted.intersection(self.in_flight):
            sequence.cut_short()

    def up_next(self, newcomers: Seq[Sequence]) -> set[Sequence]:
        """Who gets a slot in the next step, if these are submitted before it."""
        num_free = self.options.num_slots - len(self.in_flight) if self._waiting or newcomers else 0
        return set(islice(chain(tuple(self._waiting), newcomers), num_free))

    @property
    def has_remote_drafts(self) -> bool:
        """Whether another process drafts."""
        return any(lane.drafter.is_remote for lane in self.lanes)

    @property
    def has_work(self) -> bool:
        """Whether a step would return or advance anything."""
        return bool(self.num_running or self._waiting or self._refused)

    @property
    def num_running(self) -> int:
        """Rows in flight: those that write, and those whose prompts are being read."""
        return sum(lane.num_running for lane in self.lanes)

    @property
    def in_flight(self) -> list[Sequence]:
        """The sequences that hold a slot and are not finished."""
        return [sequence for lane in self.lanes for sequence in lane.admission.in_flight]

    @property
    def round_seconds(self) -> float:
        """Spent in rounds: drafting, scoring, verifying and committing, not reading prompts."""
        return sum(lane.round_seconds for lane in self.lanes)

    @property
    def num_rechecks(self) -> int:
        """Close calls that were scored again alone."""
        return sum(lane.num_rechecks for lane in self.lanes)

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens whose keys and values were there already, so that nobody had to compute them."""
        return sum(lane.admission.num_cached_tokens for lane in self.lanes)

    def step(self) -> list[Sequence]:
        """Read a chunk of the waiting prompts, then advance the rows that can run by one round at most; who finished.

        With several lanes, each goes on until it must wait for another process.
        """
        assert self.lanes, "with_slots() has taken this engine apart"
        finished, self._refused = self._refused, []
        for lane in self.lanes:
            if len(self.lanes) > 1:
                lane.admission.most_seats = -(-(len(self.in_flight) + len(self._waiting)) // len(self.lanes))
            finished += lane.advance()
        return finished

    def clear(self) -> None:
        """Forget every sequence: what to do after a step that raised, before the engine is used again."""
        self._waiting.clear()
        self._refused.clear()
        for lane in self.lanes:
            lane.clear()

    def problem_with(self, sequence: Sequence) -> str | None:
        """Why the engine cannot run this sequence; None if it can. Any thread may ask."""
        params, vocab_size = sequence.params, self.target.vocab_size
        problem = self._problem_with_prompt(sequence.prompt_token_ids, self.max_model_len - 1)
        if problem is not None:
            return problem
        stop_ids = sequence.stop_ids(self.target.eos_token_ids)
        if params.min_tokens and sum(token_id < vocab_size for token_id in stop_ids) == vocab_size:
            return "every token id is a stop id and sampling.min_tokens forbids them all; name fewer stop_token_ids"
        return self._foreign(params.logit_bias)

    def _problem_with_prompt(self, token_ids: Seq[int], most_tokens: int) -> str | None:
        if not token_ids:
            return "the prompt has no tokens; a language model needs at least one to continue"
        if len(token_ids) > most_tokens:
            also = ", which must also hold the output" if most_tokens < self.max_model_len else ""
            return (
                f"the prompt has {len(token_ids)} tokens and the context is {self.max_model_len}{also}; shorten the "
                "prompt or raise engine.max_model_len"
            )
        return self._foreign(token_ids)

    def _foreign(self, token_ids: Iterable[int]) -> str | None:
        vocab_size = self.target.vocab_size
        foreign = next((token_id for token_id in token_ids if not 0 <= token_id < vocab_size), None)
        return None if foreign is None else f"token id {foreign} is outside the target's vocabulary of {vocab_size}"
