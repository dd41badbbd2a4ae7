"""VllmEngine: a TokenEngine whose tokens vLLM computes, in this process.

Rows wait here and not in vLLM, so that what has not begun can be told from what runs. An engine whose step failed
cannot be trusted with anything after it: its process ends, the ledger finds the row that is the reason, and Ray starts
another process, as after every death. vLLM reads its environment when it is imported (`arguments.prepare_environment`).
"""

import time
from collections import deque
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace
from itertools import count, islice
from typing import Any

import torch
import vllm
from vllm.engine.arg_utils import EngineArgs
from vllm.exceptions import VLLMClientError
from vllm.lora.request import LoRARequest
from vllm.platforms import current_platform
from vllm.v1.engine.llm_engine import LLMEngine

from actors.settings import EngineSettings, GeneratorSettings
from actors.vllm.arguments import engine_arguments, machine_variables, problem_with
from actors.vllm.expansion import mend_expansion
from actors.vllm.forms import Forms
from actors.vllm.probe import check_drafts
from actors.vllm.requests import Running, scoring_params, token_logprobs, vllm_params, vllm_prompt
from decoding.checkpoint.generation import end_token_ids_of
from decoding.checkpoint.supported import in_one_line, read_config
from decoding.device import Device
from decoding.engine.draft_in_use import DraftRollback
from decoding.engine.engine import TargetLostError
from decoding.engine.limits import Limits
from decoding.scoring.text import ScoredText
from decoding.sequence import Sequence

_NO_SWAP = "engine.backend is 'vllm', and vLLM keeps the draft that it was loaded with; only backend 'dray' replaces it"


def _end_ids(settings: GeneratorSettings) -> frozenset[int]:
    target = settings.models.target
    return end_token_ids_of(target, read_config(target))


def _check_device(device: Device) -> None:
    has = "cpu" if current_platform.is_cpu() else "cuda"
    if device not in ("auto", has):
        raise ValueError(f"models.device is {device!r}, and the vLLM that is installed here runs on {has!r} alone")


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(values.items()))


def _message_of(error: Exception) -> str:
    """Return what an exception of vLLM says, in one line; those of pydantic say it once for each field."""
    if hasattr(error, "errors"):
        return "; ".join(each["msg"].removeprefix("Value error, ") for each in error.errors())
    return in_one_line(error)


class VllmEngine:
    """vLLM's engine as Dray's workers see one."""

    def __init__(self, settings: GeneratorSettings) -> None:
        """Load the models into a vLLM engine. Raises ValueError with what vLLM refuses."""
        _check_device(settings.models.device)
        arguments = engine_arguments(settings, on_processor=current_platform.is_cpu())
        try:
            self._engine = LLMEngine.from_engine_args(EngineArgs(**arguments))
        except (ValueError, TypeError, NotImplementedError, RuntimeError) as error:
            raise ValueError(f"vLLM cannot run this: {_message_of(error)}") from error
        # Each row names its end tokens; the model's and the tokenizer's would be forbidden before min_tokens where they
        # are ignored.
        self._engine.input_processor.generation_config_fields.clear()
        self._engine.renderer.get_eos_token_id = lambda: None
        model = self._engine.vllm_config.model_config
        self.options: EngineSettings = replace(settings.engine, num_slots=arguments["max_num_seqs"])
        self.max_model_len: int = model.max_model_len
        self._limits = Limits(model.max_model_len, model.get_vocab_size(), _end_ids(settings))
        self._forms = Forms(self._engine, self._limits.vocab_size, self._limits.eos_token_ids)
        self._arguments = arguments
        self.has_drafts = self._engine.vllm_config.speculative_config is not None
        # vLLM's requests, which know how many of their tokens were drafted; its answers say it only at their end.
        self._requests: Any = self._engine.engine_core.engine_core.scheduler.requests
        adapter = settings.engine.vllm.get("lora")
        self._lora = None if adapter is None else LoRARequest("lora", 1, str(adapter))
        self._names = map(str, count())
        self._waiting: deque[Sequence] = deque()
        self._running: dict[str, Running] = {}  # by the name that the request has here
        self._ended: list[Sequence] = []  # the next step returns them
        self._unscored: deque[tuple[ScoredText, int]] = deque()  # continuations that wait to be scored
        self._scoring: dict[str, tuple[ScoredText, int]] = {}  # those that vLLM has, by the name of their request
        self._num_unscored: dict[ScoredText, int] = {}  # continuations of each text that are not scored yet
        self._ended_texts: list[ScoredText] = []  # the next step of texts returns them
        self._failure: TargetLostError | None = None
        self.round_seconds = 0.0
        if self.has_drafts:
            mend_expansion()
            check_drafts(self)

    @property
    def vocab_size(self) -> int:
        """Token ids of the target."""
        return self._limits.vocab_size

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """The token ids that end a text."""
        return self._limits.eos_token_ids

    @property
    def close_call(self) -> float:
        """0: what rounding does in vLLM is not known."""
        return 0.0

    @property
    def has_work(self) -> bool:
        """Whether a step would return or advance anything."""
        return bool(self._running or self._waiting or self._ended)

    @property
    def in_flight(self) -> list[Sequence]:
        """The sequences that vLLM works on."""
        return [running.sequence for running in list(self._running.values())]

    @property
    def num_running(self) -> int:
        """The number of sequences that vLLM works on."""
        return len(self._running)

    draft_version = 0
    has_remote_drafts = False
    controls_drafts = False

    def replace_draft(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Refuse: vLLM keeps the draft that it was loaded with."""
        raise ValueError(_NO_SWAP)

    def draft_was_replaced(self, version: int) -> None:
        """Refuse, as `replace_draft`."""
        raise ValueError(_NO_SWAP)

    def take_rollback(self) -> DraftRollback | None:
        """Return None: no draft is ever replaced."""
        return None

    def footer(self) -> dict[str, str | bool | int]:
        """Return what a part records about this engine."""
        config = self._engine.vllm_config
        is_batch_invariant = bool(vllm.envs.VLLM_BATCH_INVARIANT) and current_platform.is_cuda_alike()
        return {
            "backend": "vllm",
            "version": vllm.__version__,
            "device": str(config.device_config.device_type),
            "dtype": str(config.model_config.dtype).removeprefix("torch."),
            "is_batch_invariant": is_batch_invariant,
            "exact_text": "batch-invariant" if is_batch_invariant else "no",
            "tensor_parallel_size": config.parallel_config.tensor_parallel_size,
            "arguments": _listed(self.options.vllm),
            "variables": _listed({**machine_variables(), **self.options.vllm_env}),
        }

    def description(self) -> dict[str, Any]:
        """Return what the log says about this engine."""
        own = {name: str(value) for name, value in self._arguments.items() if value is not None}
        return {**self.footer(), "slots": self.options.num_slots, "arguments": own}

    def submit(self, sequences: Iterable[Sequence]) -> None:
        """Queue sequences. One that cannot run comes back from the next step with finish_reason 'error'."""
        for sequence in sequences:
            if not sequence.is_finished and (problem := self.problem_with(sequence)):
                sequence.fail(problem)
            if sequence.is_finished:
                self._ended.append(sequence)
            else:
                sequence.max_tokens = min(sequence.max_tokens, self.max_model_len - len(sequence.prompt_token_ids))
                self._waiting.append(sequence)

    @property
    def is_lost(self) -> bool:
        """Whether vLLM has failed, so that nothing can run any more."""
        return self._failure is not None

    def step(self) -> list[Sequence]:
        """Give vLLM the rows for which it has slots, advance all by one of its steps, and return the finished ones.

        Raises TargetLostError if vLLM failed, now or before.
        """
        while self._waiting and len(self._running) < self.options.num_slots:
            self._begin(self._waiting.popleft())
        if self._running or self._scoring or self.is_lost:
            self._advance()
        finished, self._ended = self._ended, []
        return finished

    def _advance(self) -> None:
        started = time.monotonic()
        if self._failure is not None:
            raise self._failure
        try:
            for output in self._engine.step():
                self._take(output)
        except Exception as error:  # whatever it was, vLLM has no way back
            self._failure = TargetLostError(f"vLLM failed: {type(error).__name__}: {error}")
            raise self._failure from error
        self.round_seconds += time.monotonic() - started

    def _begin(self, sequence: Sequence) -> None:
        name, prompt = next(self._names), vllm_prompt(sequence.prompt_token_ids, sequence.scope)
        try:
            params = vllm_params(sequence, self._limits.eos_token_ids)
            internal_id = self._engine.add_request(name, prompt, params, lora_request=self._lora)
        except (ValueError, VLLMClientError) as error:  # of this row alone
            sequence.fail(f"vLLM refuses it: {in_one_line(error)}")
            self._ended.append(sequence)
        else:
            self._running[name] = Running(sequence, internal_id)

    def _take(self, output: Any) -> None:
        """Take what a step added to one request."""
        if output.request_id in self._scoring and output.prompt_logprobs is not None:
            self._take_scores(output.request_id, output.prompt_logprobs)
        running = self._running.get(output.request_id)
        if running is None:
            return
        (completion,) = output.outputs
        request = self._requests.get(running.internal_id)
        metrics = completion.spec_decode_metrics if request is None else request.spec_decode_metrics
        running.take(completion, metrics, self._limits.eos_token_ids)
        sequence = running.sequence
        self._check_form(sequence)
        sequence.num_cached_tokens = output.num_cached_tokens or 0
        if sequence.is_finished:
            del self._running[output.request_id]
            self._ended.append(sequence)
            if not output.finished:  # a stop string, of which vLLM knows nothing
                self._engine.abort_request([output.request_id])

    def _check_form(self, sequence: Sequence) -> None:
        """Fail a sequence that has ended without the form that it should have."""
        structured = sequence.params.structured
        if structured is None or sequence.finish_reason != "stop":
            return
        if problem := self._forms.problem_with_end(structured, sequence.output_token_ids):
            sequence.fail(problem)

    def drop(self, sequences: Iterable[Sequence], why: str = "it was dropped") -> None:
        """Drop sequences that are not wanted. Each ends at once, with finish_reason 'error'; none is a result."""
        unwanted = set(sequences)
        kept = [sequence for sequence in self._waiting if sequence not in unwanted]
        dropped = [sequence for sequence in self._waiting if sequence in unwanted]
        running = {name: each.sequence for name, each in self._running.items() if each.sequence in unwanted}
        for sequence in (*dropped, *running.values()):
            sequence.fail(why)
            self._ended.append(sequence)  # before it leaves the others: at no moment is there nothing to do
        self._waiting = deque(kept)
        for name in running:
            del self._running[name]
        self._engine.abort_request(list(running))

    def clear(self) -> None:
        """Forget every sequence."""
        self._engine.abort_request(list(self._running))
        self._running.clear()
        self._waiting.clear()
        self._ended.clear()

    def up_next(self) -> set[Sequence]:
        """Return the waiting sequences that get a slot in the next step."""
        return set(islice(tuple(self._waiting), max(0, self.options.num_slots - len(self._running))))

    def resize(self, num_slots: int) -> None:
        """Run at most this many rows at once. Raises RuntimeError for none, or more than vLLM was loaded with."""
        most: int = self._arguments["max_num_seqs"]
        if not 1 <= num_slots <= most:
            raise RuntimeError(f"vLLM was loaded with {most} slots, and cannot go on with {num_slots}")
        self.options = replace(self.options, num_slots=num_slots)

    def problem_with(self, sequence: Sequence) -> str | None:
        """Return why the engine cannot run this sequence; None if it can. Any thread may ask."""
        if sequence.num_speculative_tokens is not None:
            return "vLLM drafts for all rows alike: num_speculative_tokens of a row is for engine.backend 'dray'"
        params = sequence.params
        if problem := self._limits.problem_with(sequence) or problem_with(params, self.has_drafts, self.vocab_size):
            return problem
        return None if params.structured is None else self._forms.problem_with(params.structured)

    def problem_with_text(self, text: ScoredText) -> str | None:
        """Return why the engine cannot score this text; None if it can. Any thread may ask.

        vLLM writes a token behind each text that it scores, so a text is shorter than the context.
        """
        return self._limits.problem_with_text(text, num_behind=1)

    def submit_texts(self, texts: Iterable[ScoredText]) -> None:
        """Queue texts; each continuation is a request of its own, and vLLM shares what they begin with if it does."""
        for text in texts:
            if not text.is_finished and (problem := self.problem_with_text(text)):
                text.fail(problem)
            if text.is_finished:
                self._ended_texts.append(text)
                continue
            text.scores = [[] for _ in text.continuations]
            asking = [number for number, continuation in enumerate(text.continuations) if continuation]
            self._num_unscored[text] = len(asking)
            self._unscored.extend((text, number) for number in asking)
            if not asking:
                self._end_text(text)

    @property
    def has_texts(self) -> bool:
        """Whether there are texts that `step_texts` would advance or return."""
        return bool(self._num_unscored or self._ended_texts)

    def step_texts(self) -> list[ScoredText]:
        """Give vLLM texts, advance all that it has by one of its steps, and return the texts that are finished.

        No row begins here: those who wait for one are told before a step. Raises TargetLostError if vLLM failed.
        """
        while self._unscored and len(self._scoring) < self.options.num_slots:
            self._begin_text(*self._unscored.popleft())
        if self._scoring or self.is_lost:
            self._advance()
        ended, self._ended_texts = self._ended_texts, []
        return ended

    def drop_texts(self, texts: Iterable[ScoredText]) -> None:
        """Forget texts that are not wanted; they do not come back."""
        unwanted = set(texts)
        names = [name for name, (text, _) in self._scoring.items() if text in unwanted]
        self._ended_texts = [text for text in self._ended_texts if text not in unwanted]
        self._unscored = deque(each for each in self._unscored if each[0] not in unwanted)
        for text in unwanted:
            self._num_unscored.pop(text, None)
        for name in names:
            del self._scoring[name]
        self._engine.abort_request(names)

    def give_way(self, why: str) -> None:
        """Fail the texts in flight: what vLLM raises over one text it raises when the text comes."""
        texts = {text for text, _ in self._scoring.values()}
        self.drop_texts(texts)
        for text in texts:
            text.fail(why)
            self._ended_texts.append(text)

    def clear_texts(self) -> None:
        """Forget all texts."""
        self.drop_texts(list(self._num_unscored))
        self._ended_texts.clear()

    def score(self, texts: Iterable[ScoredText]) -> None:
        """Score texts, and return when all are finished."""
        self.submit_texts(texts)
        while self.has_texts:
            self.step_texts()

    def _begin_text(self, text: ScoredText, number: int) -> None:
        name, token_ids = next(self._names), [*text.prompt_token_ids, *text.continuations[number]]
        self._scoring[name] = text, number
        try:
            prompt = vllm_prompt(token_ids, text.scope)
            self._engine.add_request(name, prompt, scoring_params(text.num_top), lora_request=self._lora)
        except (ValueError, VLLMClientError) as error:  # of this text alone
            del self._scoring[name]
            self.drop_texts([text])
            text.fail(f"vLLM refuses it: {in_one_line(error)}")
            self._ended_texts.append(text)

    def _take_scores(self, name: str, positions: Seq[Any]) -> None:
        """Take the log-probabilities of all tokens of a text but its first."""
        text, number = self._scoring.pop(name)
        continuation = text.continuations[number]
        behind = zip(positions[len(text.prompt_token_ids) :], continuation, strict=True)
        text.scores[number] = [token_logprobs(entries, token, text.num_top) for entries, token in behind]
        self._engine.abort_request([name])
        self._num_unscored[text] -= 1
        if not self._num_unscored[text]:
            self._end_text(text)

    def _end_text(self, text: ScoredText) -> None:
        del self._num_unscored[text]
        text.is_finished = True
        self._ended_texts.append(text)
