"""VllmEngine: a TokenEngine whose tokens vLLM computes, in this process.

Rows wait here and not in vLLM, so that what has not begun can be told from what runs. An engine whose step failed
cannot be trusted with anything after it: its process ends, the ledger finds the row that is the reason, and Ray starts
another process, as after every death. vLLM reads its environment when it is imported (`arguments.prepare_environment`).
"""

import time
from collections import deque
from collections.abc import Generator, Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace
from itertools import count, islice
from typing import Any

import vllm
from vllm.engine.arg_utils import EngineArgs
from vllm.lora.request import LoRARequest
from vllm.platforms import current_platform
from vllm.v1.engine.llm_engine import LLMEngine

from actors.settings import EngineSettings, GeneratorSettings
from actors.vllm.arguments import engine_arguments, machine_variables, problem_with
from actors.vllm.expansion import mend_expansion
from actors.vllm.probe import check_drafts
from actors.vllm.requests import Running, scoring_params, token_logprobs, vllm_params
from decoding.checkpoint.generation import end_token_ids_of
from decoding.checkpoint.supported import in_one_line, read_config
from decoding.device import Device
from decoding.engine.engine import PromptError, TargetLostError
from decoding.engine.limits import Limits
from decoding.sequence import Sequence, TokenLogprobs


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
        # Each row names its end tokens; those of the model would be forbidden before min_tokens where they are ignored.
        self._engine.input_processor.generation_config_fields.clear()
        model = self._engine.vllm_config.model_config
        self.options: EngineSettings = replace(settings.engine, num_slots=arguments["max_num_seqs"])
        self.max_model_len: int = model.max_model_len
        self._limits = Limits(model.max_model_len, model.get_vocab_size(), _end_ids(settings))
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
        self._scores: list[TokenLogprobs] | None = None  # of the prompt that is scored
        self._scoring: tuple[str, Seq[int], int] | None = None  # its name, its tokens, and how many others are wanted
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
        if self._running or self._scoring is not None or self.is_lost:
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
        name, prompt = next(self._names), {"prompt_token_ids": list(sequence.prompt_token_ids)}
        try:
            params = vllm_params(sequence, self._limits.eos_token_ids)
            internal_id = self._engine.add_request(name, prompt, params, lora_request=self._lora)
        except ValueError as error:  # of this row alone
            sequence.fail(f"vLLM refuses it: {in_one_line(error)}")
            self._ended.append(sequence)
        else:
            self._running[name] = Running(sequence, internal_id)

    def _take(self, output: Any) -> None:
        """Take what a step added to one request."""
        if self._scoring is not None and output.request_id == self._scoring[0]:
            self._scores = self._scored(output.prompt_logprobs)
        running = self._running.get(output.request_id)
        if running is None:
            return
        (completion,) = output.outputs
        request = self._requests.get(running.internal_id)
        metrics = completion.spec_decode_metrics if request is None else request.spec_decode_metrics
        running.take(completion, metrics, self._limits.eos_token_ids)
        sequence = running.sequence
        sequence.num_cached_tokens = output.num_cached_tokens or 0
        if sequence.is_finished:
            del self._running[output.request_id]
            self._ended.append(sequence)
            if not output.finished:  # a stop string, of which vLLM knows nothing
                self._engine.abort_request([output.request_id])

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
        return self._limits.problem_with(sequence) or problem_with(sequence.params, self.has_drafts, self.vocab_size)

    def prompt_logprobs(self, prompt_token_ids: Seq[int], num_top: int) -> Generator[list[TokenLogprobs], None, None]:
        """Yield empty lists while vLLM works on the prompt and all else, then the scores of its tokens but the first.

        Raises PromptError for a prompt that cannot be read, TargetLostError if vLLM failed.
        """
        if problem := self._limits.problem_with_prompt(prompt_token_ids, self.max_model_len - 1):
            raise PromptError(problem)
        name, prompt = next(self._names), {"prompt_token_ids": list(prompt_token_ids)}
        self._scoring, self._scores = (name, prompt_token_ids, num_top), None
        try:
            try:
                self._engine.add_request(name, prompt, scoring_params(num_top), lora_request=self._lora)
            except ValueError as error:
                raise PromptError(f"vLLM refuses it: {in_one_line(error)}") from error
            while self._scores is None:
                self._advance()  # without beginning rows: those who wait for one are told before a step
                yield []
            yield self._scores
        finally:
            self._scoring = None
            self._engine.abort_request([name])

    def _scored(self, positions: Seq[Any]) -> list[TokenLogprobs]:
        assert self._scoring is not None
        _, token_ids, num_top = self._scoring
        return [
            token_logprobs(entries, token, num_top) for entries, token in zip(positions[1:], token_ids[1:], strict=True)
        ]
