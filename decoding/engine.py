"""Engine: the loop. Admit, then a round of propose, score, verify, commit. That is the whole algorithm.

    admission.advance ->  who runs: a chunk of the waiting prompts is read between any two rounds
    drafter.propose   ->  K tokens a row, guessed cheaply
    target.forward    ->  the target's logits at all K + 1 positions, in one pass
    verify            ->  how many guesses stand, and the token after them
    sequence.commit   ->  tokens and counts; a finished row's slot goes to whoever waits, before the next round

Rollback is implicit: a row's next forward starts at its committed length, over whatever a rejected guess left there.

Shapes: B running rows, K drafted tokens, J = K + 1 positions, V vocabulary.
"""

import time
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import replace

import torch

from decoding.admission import Admission
from decoding.costs import measure_costs
from decoding.device import Device, to_device
from decoding.drafters import Drafter
from decoding.load import Parts, load_parts
from decoding.memory import give_back_freed_memory
from decoding.model import DType, LanguageModel
from decoding.options import EngineOptions
from decoding.overhead import with_overhead
from decoding.rows import Rows, sampling_batch
from decoding.sampling import SamplingBatch, first_stop, process_logits
from decoding.sampling_params import SamplingParams
from decoding.schedule import AdaptiveSchedule, FixedSchedule, Schedule
from decoding.second_look import SecondLook
from decoding.sequence import Sequence, TokenLogprobs
from decoding.verify import Draft, Verdict, judge, verify_rejection

# The batch's shape changes float32 logits by about 1e-6 of their size. Where the two best candidates lie nearer than
# this (in logits), rounding could decide, so the row is scored again alone. Other dtypes round too coarsely for that.
CLOSE_CALL = {torch.float32: 1e-4}
# Prompt tokens between two rounds: a chunk that uses the device well and keeps the running rows waiting for about as
# long as a few rounds. On CPU, and elsewhere.
_MAX_PREFILL_TOKENS = (512, 2048)


class Engine:
    """Runs sequences through a draft and a target. Not thread-safe: one thread drives it."""

    def __init__(self, target: LanguageModel, drafter: Drafter, options: EngineOptions, max_model_len: int) -> None:
        """Use `load` unless you bring your own parts."""
        self.target = target
        self.drafter = drafter
        self.options = options
        self.max_model_len = max_model_len
        self.round_seconds = 0.0  # spent in rounds: drafting, scoring, verifying and committing, not reading prompts
        self._parts: Parts | None = None
        self._second_look = SecondLook(target, drafter, options.verification)
        self._refused: list[Sequence] = []
        self._running: list[Sequence] = []  # the rows of the last round: row b stands in slot b
        self._sampling: SamplingBatch | None = None  # of the running rows; None when they have changed
        target.allocate(options.num_slots, max_model_len)
        budget = options.max_prefill_tokens or _MAX_PREFILL_TOKENS[target.device.type != "cpu"]
        self._admission = Admission(target, drafter, options.num_slots, budget)
        self.schedule: Schedule = FixedSchedule(options.num_speculative_tokens)

    @classmethod
    def load(
        cls,
        target: str,
        draft: str | None = None,
        options: EngineOptions | None = None,
        *,
        device: Device = "auto",
        dtype: DType = "auto",
    ) -> "Engine":
        """An engine over the models at these paths; a ValueError, before anything is generated, if it cannot work."""
        options = options or EngineOptions()
        return cls._over(load_parts(target, draft, options, device, dtype), options)

    @classmethod
    def _over(cls, parts: Parts, options: EngineOptions) -> "Engine":
        schedule: AdaptiveSchedule | None = None
        if options.draft_length == "adaptive" and parts.drafter_name != "none":
            num_slots, most = options.num_slots, options.num_speculative_tokens
            parts.target.allocate(num_slots, parts.max_model_len)
            drafter = parts.make_drafter(num_slots)
            costs = with_overhead(
                measure_costs(parts.target, parts.draft, num_slots, most),
                parts.target,
                drafter if parts.draft is not None else None,
                num_slots,
                most,
                lambda model, drafter: cls(model, drafter, options, max_model_len=64),
            )
            schedule = AdaptiveSchedule(costs, most)
        engine = cls(parts.target, parts.make_drafter(options.num_slots), options, parts.max_model_len)
        engine._parts = parts
        if schedule is not None:
            engine.schedule = schedule
            if not schedule.pays_with(options.num_slots):
                engine.drafter.rest()
        give_back_freed_memory()
        return engine

    def with_slots(self, num_slots: int) -> "Engine":
        """A new engine over the same models, for so many rows; this one and its sequences are gone."""
        assert self._parts is not None, "only an engine that was loaded can be made anew"
        self.clear()
        self._parts.target.release()
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
            problem = self._problem_with(sequence)
            if problem is None:
                sequence.max_tokens = min(sequence.max_tokens, self.max_model_len - len(sequence.prompt_token_ids))
                self._admission.submit(sequence)
            else:
                sequence.fail(problem)
                self._refused.append(sequence)

    def drop(self, sequences: Iterable[Sequence]) -> None:
        """Spend no more on these, which nobody wants. Each comes back from a step, as it would have; none is a result.

        Those that do not write yet end at once, with finish_reason 'error': nothing more of their prompts is read.
        Those that write end with their next token.
        """
        unwanted = set(sequences)
        for sequence in self._admission.forget(unwanted):
            sequence.fail("it was dropped before it began")
            self._refused.append(sequence)
        for sequence in unwanted.intersection(self.in_flight):
            sequence.cut_short()

    @property
    def has_work(self) -> bool:
        """Whether a step would return or advance anything."""
        return bool(self.num_running or self._admission.num_waiting or self._refused)

    @property
    def num_running(self) -> int:
        """Rows in flight: those that write, and those whose prompts are being read."""
        num_writing = sum(not sequence.is_finished for sequence in self._running)
        return num_writing + self._admission.num_filling

    @property
    def in_flight(self) -> list[Sequence]:
        """The sequences that hold a slot and are not finished."""
        return self._admission.in_flight

    @property
    def num_rechecks(self) -> int:
        """Close calls that were scored again alone."""
        return self._second_look.num_rechecks

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens whose keys and values were there already, so that nobody had to compute them."""
        return self._admission.num_cached_tokens

    def step(self) -> list[Sequence]:
        """Read a chunk of the waiting prompts, then advance every row that can run by one round; who finished."""
        running = self._admission.advance()
        if running != self._running:
            self._running, self._sampling = running, None
        if self._running:
            self._round()
        refused, self._refused = self._refused, []
        return refused + [sequence for sequence in self._running if sequence.is_finished]

    def clear(self) -> None:
        """Forget every sequence: what to do after a step that raised, before the engine is used again."""
        self._admission.clear()
        self._refused.clear()
        self._running = []
        self._sampling = None

    @torch.inference_mode()
    def _round(self) -> None:
        started = time.perf_counter()
        rows = self._running_rows()
        draft = self.drafter.propose(rows)
        num_drafted_B = draft.num_draft_tokens_B
        if draft.token_ids_BK.shape[1]:  # what is drafted after an end token cannot be kept
            num_drafted_B = torch.minimum(num_drafted_B, first_stop(draft.token_ids_BK, rows.sampling.stop_ids_BS))
        draft = replace(draft, num_draft_tokens_B=num_drafted_B)

        newest = [sequence.token_ids[-1] for sequence in self._running]
        newest_B1 = to_device(newest, self.target.device)[:, None]
        tokens_BJ = torch.cat([newest_B1, draft.token_ids_BK], dim=1)
        every_BJ = torch.arange(tokens_BJ.shape[1], device=tokens_BJ.device).expand_as(tokens_BJ)
        starts = [len(sequence) - 1 for sequence in self._running]
        lengths = None if draft.most_B is None else [1 + most for most in draft.most_B]
        logits_BJV = self.target.forward(starts, tokens_BJ, every_BJ, lengths=lengths)

        verdict, is_finite_B = self._verify(rows, draft, logits_BJV)
        columns = (verdict.num_accepted_B, verdict.next_token_B, verdict.first_close_call_B, is_finite_B, num_drafted_B)
        packed = torch.cat([torch.stack([c.long() for c in columns], dim=1), draft.token_ids_BK], dim=1)
        verdicts = packed.tolist()
        for row, (accepted, next_token, close_call, is_finite, num_drafted, *drafted) in enumerate(verdicts):
            sequence = self._running[row]
            logits_JV = logits_BJV[row]
            tokens = [*drafted[:accepted], next_token]
            if not is_finite:
                logits_JV = self._second_look.score_again(row, sequence)
                if not logits_JV.amax().isfinite():
                    sequence.fail(
                        f"the target's logits are not finite after {len(sequence)} tokens; "
                        "if this is a float16 overflow, use bfloat16 or float32"
                    )
                    continue
                tokens = [self._second_look.decide(sequence, [], logits_JV[0])]
            elif close_call <= accepted:
                tokens = self._second_look.recheck(sequence, tokens[:close_call])
            sequence.commit(
                tokens,
                num_draft_tokens=num_drafted,
                eos_token_ids=self.target.eos_token_ids,
                logprobs=_logprobs(logits_JV, tokens, sequence.params.logprobs),
            )
        num_accepted, num_drafted_of_row = [v[0] for v in verdicts], [v[4] for v in verdicts]
        self.drafter.observe(rows, num_drafted_of_row, num_accepted)
        seconds = time.perf_counter() - started
        self.round_seconds += seconds
        self.schedule.observe(rows.sequences, num_drafted_of_row, num_accepted, seconds)

    def _verify(self, rows: Rows, draft: Draft, logits_BJV: torch.Tensor) -> tuple[Verdict, torch.Tensor]:
        """The verdict, and which rows' logits are numbers."""
        if self.options.verification == "rejection":
            num_positions = logits_BJV.shape[1]
            history = rows.history(draft.token_ids_BK, 0, num_positions)
            scores_BJV = process_logits(logits_BJV, rows.sampling, history)
            verdict = verify_rejection(scores_BJV, draft, rows.sampling, rows.positions(0, num_positions))
            return verdict, logits_BJV.amax((1, 2)).isfinite()
        close_call = CLOSE_CALL.get(self.target.dtype, 0.0)
        picks = rows.pick(logits_BJV, draft.token_ids_BK, 0, close_call)
        return judge(picks, draft, rows.sampling, close_call), picks.is_finite_BJ.all(-1)

    def _running_rows(self) -> Rows:
        sequences = tuple(self._running)
        if self._sampling is None:
            self._sampling = sampling_batch(sequences, self.target.eos_token_ids, self.target.device)
        rows = Rows(sequences, self._sampling, self.schedule.lengths(sequences), self.options.verification)
        plan = self.schedule.plan(sequences, self.drafter.outlook(rows), self.drafter.has_model)
        return replace(rows, num_draft_tokens=plan.lengths, looks_up=plan.looks_up, tails=plan.tails)

    def _problem_with(self, sequence: Sequence) -> str | None:
        num_tokens, vocab_size = len(sequence.prompt_token_ids), self.target.vocab_size
        if num_tokens == 0:
            return "the prompt has no tokens; a language model needs at least one to continue"
        if num_tokens >= self.max_model_len:
            return (
                f"the prompt has {num_tokens} tokens and the context is {self.max_model_len}, which must also hold the "
                "output; shorten the prompt or raise engine.max_model_len"
            )
        params = sequence.params
        stop_ids = sequence.stop_ids(self.target.eos_token_ids)
        if params.min_tokens and sum(token_id < vocab_size for token_id in stop_ids) == vocab_size:
            return "every token id is a stop id and sampling.min_tokens forbids them all; name fewer stop_token_ids"
        foreign = [t for t in (*sequence.prompt_token_ids, *params.logit_bias) if not 0 <= t < vocab_size]
        if foreign:
            return f"token id {foreign[0]} is outside the target's vocabulary of {vocab_size}"
        return None


def _logprobs(logits_JV: torch.Tensor, tokens: list[int], num_top: int | None) -> list[TokenLogprobs]:
    if num_top is None:
        return []
    logprobs_JV = logits_JV[: len(tokens)].float().log_softmax(-1)
    chosen_J = logprobs_JV.gather(-1, to_device(tokens, logits_JV.device)[:, None])[:, 0].tolist()
    values_JK, ids_JK = logprobs_JV.topk(min(num_top, logprobs_JV.shape[-1]), dim=-1)
    return [
        TokenLogprobs(logprob, tuple(zip(ids, values, strict=True)))
        for logprob, ids, values in zip(chosen_J, ids_JK.tolist(), values_JK.tolist(), strict=True)
    ]
