"""Engine: the loop. Admit, then rounds of propose, score, verify, commit; retire. That is the whole algorithm.

    drafter.propose   ->  K tokens a row, guessed cheaply
    target.forward    ->  the target's logits at all K + 1 positions, in one pass
    verify            ->  how many guesses stand, and the token after them
    sequence.commit   ->  tokens and counts; a finished row's slot goes to whoever waits, before the next round

Rollback is implicit: a row's next forward starts at its committed length, over whatever a rejected guess left there.

Shapes: B running rows, K drafted tokens, J = K + 1 positions, V vocabulary.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import replace

import torch

from decoding.costs import measure_costs
from decoding.drafters import NEED_A_MODEL, Drafter, make_drafter
from decoding.model import Device, DType, LanguageModel
from decoding.options import EngineOptions
from decoding.overhead import with_overhead
from decoding.probe import check_model
from decoding.rows import Rows, sampling_batch
from decoding.sampling import SamplingBatch, first_stop, process_logits, shape_logits, truncate, truncate_with_borders
from decoding.sampling_params import SamplingParams
from decoding.schedule import AdaptiveSchedule, FixedSchedule, Schedule
from decoding.sequence import Sequence, TokenLogprobs
from decoding.verify import Draft, Verdict, pick_shared, verify_coupled, verify_rejection
from decoding.vocabulary import check_same_vocabulary

# The batch's shape changes float32 logits by about 1e-6 of their size. Where the two best candidates lie nearer than
# this (in logits), rounding could decide, so the row is scored again alone. Other dtypes round too coarsely for that.
CLOSE_CALL = {torch.float32: 1e-4}
_DEFAULT_MAX_MODEL_LEN = 4096


class Engine:
    """Runs sequences through a draft and a target. Not thread-safe: one thread drives it."""

    def __init__(self, target: LanguageModel, drafter: Drafter, options: EngineOptions, max_model_len: int) -> None:
        """Use `load` unless you bring your own parts."""
        self.target = target
        self.drafter = drafter
        self.options = options
        self.max_model_len = max_model_len
        self.num_rechecks = 0  # close calls that were scored again alone
        self._waiting: deque[Sequence] = deque()
        self._refused: list[Sequence] = []
        self._running: list[Sequence] = []  # row b stands in slot b
        self._sampling: SamplingBatch | None = None  # of the running rows; None when they have changed
        target.allocate(options.num_slots, max_model_len)
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
        drafter_name = options.pick_drafter(draft)
        target_model = LanguageModel.load(target, device, dtype)
        check_model(target_model, target)
        draft_model = None
        if drafter_name in NEED_A_MODEL and draft is not None:
            draft_model = LanguageModel.load(draft, device, dtype)
            check_same_vocabulary(target, draft, target_model.vocab_size, draft_model.vocab_size)
            check_model(draft_model, draft)
        max_model_len = _max_model_len(options.max_model_len, target_model.max_positions)
        drafter = make_drafter(drafter_name, draft_model, target_model.vocab_size, options.num_slots, max_model_len)
        engine = cls(target_model, drafter, options, max_model_len)
        if options.draft_length == "adaptive" and drafter_name != "none":
            most = options.num_speculative_tokens
            costs = measure_costs(target_model, draft_model, options.num_slots, most)
            costs = with_overhead(
                costs,
                target_model,
                options.num_slots,
                most,
                lambda model, drafter: cls(model, drafter, options, max_model_len=64),
            )
            engine.schedule = AdaptiveSchedule(costs, most)
        return engine

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
            problem = self._problem_with(sequence)
            if problem is None:
                sequence.max_tokens = min(sequence.max_tokens, self.max_model_len - len(sequence.prompt_token_ids))
                self._waiting.append(sequence)
            else:
                sequence.fail(problem)
                self._refused.append(sequence)

    @property
    def has_work(self) -> bool:
        """Whether a step would return or advance anything."""
        return bool(self._waiting or self._running or self._refused)

    @property
    def num_running(self) -> int:
        """Rows in flight."""
        return len(self._running)

    def step(self) -> list[Sequence]:
        """Advance every row by one round; the sequences that finished."""
        finished: list[Sequence] = []
        self._admit()
        if self._running:
            self._round()
            finished = self._retire()
        refused, self._refused = self._refused, []
        return refused + finished

    def clear(self) -> None:
        """Forget every sequence: what to do after a step that raised, before the engine is used again."""
        self._waiting.clear()
        self._refused.clear()
        self._running.clear()
        self._sampling = None

    def _admit(self) -> None:
        slots = range(len(self._running), min(self.options.num_slots, len(self._running) + len(self._waiting)))
        newcomers = [self._waiting.popleft() for _ in slots]
        self._running += newcomers
        self._prefill(list(slots), newcomers)

    def _retire(self) -> list[Sequence]:
        """Take finished rows out. Their slots go to waiting sequences, else to the last rows: slots stay 0..B-1."""
        finished = [sequence for sequence in self._running if sequence.is_finished]
        holes = [slot for slot, sequence in enumerate(self._running) if sequence.is_finished]
        refilled = [holes.pop(0) for _ in range(min(len(holes), len(self._waiting)))]
        newcomers = [self._waiting.popleft() for _ in refilled]
        for slot, sequence in zip(refilled, newcomers, strict=True):
            self._running[slot] = sequence
        for slot in reversed(holes):
            last = len(self._running) - 1
            if slot != last:
                self._move(last, slot)
            self._running.pop()
        if finished:
            self._sampling = None
        self._prefill(refilled, newcomers)
        return finished

    def _move(self, source: int, target: int) -> None:
        assert self.target.cache is not None
        self.target.cache.move(source, target, len(self._running[source]) - 1)
        self.drafter.move(source, target)
        self._running[target] = self._running[source]

    def _prefill(self, slots: list[int], newcomers: list[Sequence]) -> None:
        """Everything but the newest token, which each round scores first."""
        if newcomers:
            self._sampling = None
            self.target.prefill(slots, [sequence.token_ids[:-1] for sequence in newcomers])
            self.drafter.admit(slots, newcomers)

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
        newest_B1 = torch.tensor(newest, device=self.target.device)[:, None]
        tokens_BJ = torch.cat([newest_B1, draft.token_ids_BK], dim=1)
        every_BJ = torch.arange(tokens_BJ.shape[1], device=tokens_BJ.device).expand_as(tokens_BJ)
        starts = [len(sequence) - 1 for sequence in self._running]
        lengths = None if draft.most_B is None else [1 + most for most in draft.most_B]
        logits_BJV = self.target.forward(starts, tokens_BJ, every_BJ, lengths=lengths)

        verdict = self._verify(rows, draft, logits_BJV)
        is_finite_B = logits_BJV.amax((1, 2)).isfinite()
        columns = (verdict.num_accepted_B, verdict.next_token_B, verdict.first_close_call_B, is_finite_B, num_drafted_B)
        packed = torch.cat([torch.stack([c.long() for c in columns], dim=1), draft.token_ids_BK], dim=1)
        verdicts = packed.tolist()
        for row, (accepted, next_token, close_call, is_finite, num_drafted, *drafted) in enumerate(verdicts):
            sequence = self._running[row]
            logits_JV = logits_BJV[row]
            tokens = [*drafted[:accepted], next_token]
            if not is_finite:
                logits_JV = self._score_again(row)
                if not logits_JV.amax().isfinite():
                    sequence.fail(
                        f"the target's logits are not finite after {len(sequence)} tokens; "
                        "if this is a float16 overflow, use bfloat16 or float32"
                    )
                    continue
                tokens = [self._decide_alone(sequence, [], logits_JV[0])]
            elif close_call <= accepted:
                tokens = self._recheck(sequence, tokens[:close_call])
            sequence.commit(
                tokens,
                num_draft_tokens=num_drafted,
                eos_token_ids=self.target.eos_token_ids,
                logprobs=_logprobs(logits_JV, tokens, sequence.params.logprobs),
            )
        num_accepted, num_drafted_of_row = [v[0] for v in verdicts], [v[4] for v in verdicts]
        self.drafter.observe(rows, num_drafted_of_row, num_accepted)
        seconds = time.perf_counter() - started
        self.schedule.observe(rows.sequences, num_drafted_of_row, num_accepted, seconds)

    def _verify(self, rows: Rows, draft: Draft, logits_BJV: torch.Tensor) -> Verdict:
        num_positions = logits_BJV.shape[1]
        scores_BJV = shape_logits(logits_BJV, rows.sampling, rows.history(draft.token_ids_BK, 0, num_positions))
        positions_BJ = rows.positions(0, num_positions)
        if self.options.verification == "rejection":
            return verify_rejection(truncate(scores_BJV, rows.sampling), draft, rows.sampling, positions_BJ)
        close_call = CLOSE_CALL.get(self.target.dtype, 0.0)
        if not close_call or not rows.sampling.truncates:
            cut_BJV = truncate(scores_BJV, rows.sampling)
            return verify_coupled(cut_BJV, draft, rows.sampling, positions_BJ, close_call)
        coldest = min(s.params.temperature for s in rows.sequences if s.params.temperature)
        cut_BJV, *borders_BJV = truncate_with_borders(scores_BJV, rows.sampling, slack=close_call / coldest)
        return verify_coupled(cut_BJV, draft, rows.sampling, positions_BJ, close_call, tuple(borders_BJV))

    def _recheck(self, sequence: Sequence, accepted: list[int]) -> list[int]:
        """The accepted tokens and the one after them, decided by the sequence alone: one row, no cache, no draft.

        The decision is then a function of the tokens before it, whatever batch or draft this round had.
        """
        self.num_rechecks += 1
        logits_V = self.target.plain_logits(sequence.token_ids + accepted)
        return [*accepted, self._decide_alone(sequence, accepted, logits_V)]

    def _score_again(self, row: int) -> torch.Tensor:
        """Logits [1, V] after a row's tokens, without the draft: a guess that breaks the numbers must not fail it.

        Its slots are cleared (a value that is not finite would poison whatever comes next there) and filled anew.
        """
        assert self.target.cache is not None
        sequence = self._running[row]
        self.target.cache.zero(row)
        self.drafter.reset(row)
        logits_V = self.target.plain_logits(sequence.token_ids)
        if logits_V.amax().isfinite():
            self.target.prefill([row], [sequence.token_ids])  # its newest token, too: this round did not feed it
            self.drafter.admit([row], [sequence])
        return logits_V[None]

    def _decide_alone(self, sequence: Sequence, accepted: list[int], logits_V: torch.Tensor) -> int:
        """The token after `accepted`, as the verifier decides it where there is no draft."""
        rows = self._row_alone(sequence)
        accepted_1K = torch.tensor([accepted], dtype=torch.int64, device=self.target.device)
        scores_11V = process_logits(logits_V[None, None], rows.sampling, rows.history(accepted_1K, len(accepted), 1))
        positions_11 = rows.positions(len(accepted), 1)
        if self.options.verification == "rejection":
            nothing = Draft(accepted_1K[:, :0], torch.zeros_like(rows.sampling.keys_B))
            return int(verify_rejection(scores_11V, nothing, rows.sampling, positions_11).next_token_B)
        return int(pick_shared(scores_11V, rows.sampling, positions_11))

    def _running_rows(self) -> Rows:
        sequences = tuple(self._running)
        if self._sampling is None:
            self._sampling = sampling_batch(sequences, self.target.eos_token_ids, self.target.device)
        rows = Rows(sequences, self._sampling, self.schedule.lengths(sequences), self.options.verification)
        plan = self.schedule.plan(sequences, self.drafter.outlook(rows), self.drafter.has_model)
        return replace(rows, num_draft_tokens=plan.lengths, looks_up=plan.looks_up, tails=plan.tails)

    def _row_alone(self, sequence: Sequence) -> Rows:
        sampling = sampling_batch((sequence,), self.target.eos_token_ids, self.target.device)
        return Rows((sequence,), sampling, (0,), self.options.verification)

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


def _max_model_len(wanted: int | None, max_positions: int | None) -> int:
    if wanted is None:
        return min(max_positions or _DEFAULT_MAX_MODEL_LEN, _DEFAULT_MAX_MODEL_LEN)
    if max_positions is not None and wanted > max_positions:
        raise ValueError(
            f"engine.max_model_len is {wanted}, but the target sees at most {max_positions} positions; lower it"
        )
    return wanted


def _logprobs(logits_JV: torch.Tensor, tokens: list[int], num_top: int | None) -> list[TokenLogprobs]:
    if num_top is None:
        return []
    logprobs_JV = logits_JV[: len(tokens)].float().log_softmax(-1)
    chosen_J = logprobs_JV.gather(-1, torch.tensor(tokens, device=logits_JV.device)[:, None])[:, 0].tolist()
    values_JK, ids_JK = logprobs_JV.topk(min(num_top, logprobs_JV.shape[-1]), dim=-1)
    return [
        TokenLogprobs(logprob, tuple(zip(ids, values, strict=True)))
        for logprob, ids, values in zip(chosen_J, ids_JK.tolist(), values_JK.tolist(), strict=True)
    ]
