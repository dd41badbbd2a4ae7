"""VllmEngine: a TokenEngine whose tokens vLLM computes, in this process.

Rows wait here and not in vLLM, so that what has not begun can be told from what runs. An engine whose step failed
cannot be trusted with anything after it: its process ends, the ledger finds the row that is the reason, and Ray starts
another process, as after every death. vLLM reads its environment when it is imported (`arguments.prepare_environment`).
"""

import time
from collections.abc import Mapping, Set
from dataclasses import replace
from itertools import count
from typing import Any

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
from actors.vllm.requests import Running, asked_logprobs, scoring_params, vllm_params, vllm_prompt
from decoding.checkpoint.generation import end_token_ids_of
from decoding.checkpoint.supported import in_one_line, read_config
from decoding.device import Device
from decoding.engine.scored_text import ScoredText
from decoding.engine.token_engine import Limits, TargetLostError, TokenEngine
from decoding.sequence import Sequence


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


class VllmEngine(TokenEngine):
    """vLLM's engine as Dray's workers see one."""

    options: EngineSettings
    _why_draft_stays = (
        "engine.backend is 'vllm', and vLLM keeps the draft that it was loaded with; only backend 'dray' replaces it"
    )

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
        limits = Limits(model.max_model_len, model.get_vocab_size(), _end_ids(settings))
        super().__init__(limits, replace(settings.engine, num_slots=arguments["max_num_seqs"]))
        self._forms = Forms(self._engine, self._limits.vocab_size, self._limits.eos_token_ids)
        self._arguments = arguments
        self.has_drafts = self._engine.vllm_config.speculative_config is not None
        # vLLM's requests, which know how many of their tokens were drafted; its answers say it only at their end.
        self._requests: Any = self._engine.engine_core.engine_core.scheduler.requests
        adapter = settings.engine.vllm.get("lora")
        self._lora = None if adapter is None else LoRARequest("lora", 1, str(adapter))
        self._names = map(str, count())
        self._running: dict[str, Running] = {}  # by the name that the request has here
        self._failure: TargetLostError | None = None
        self._round_seconds = 0.0
        if self.has_drafts:
            mend_expansion()
            check_drafts(self)

    @property
    def round_seconds(self) -> float:
        """Seconds spent in vLLM's steps."""
        return self._round_seconds

    @property
    def in_flight(self) -> list[Sequence]:
        """The sequences that vLLM works on."""
        return [running.sequence for running in list(self._running.values())]

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
        return {**self.footer(), "slots": self.options.slots, "arguments": own}

    def step(self) -> list[Sequence]:
        """Give vLLM the rows for which it has slots, advance all by one of its steps, and return the finished ones.

        Raises TargetLostError if vLLM failed, now or before.
        """
        while self._waiting and len(self._running) < self.options.slots:
            self._begin(self._waiting.popleft())
        if self._running or self._failure is not None:
            self._advance()
        return self._take_ended()

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
        self._round_seconds += time.monotonic() - started

    def _begin(self, sequence: Sequence) -> None:
        name, prompt = next(self._names), vllm_prompt(sequence.prompt_token_ids, sequence.scope)
        try:
            if sequence.asked is not None:
                params = scoring_params(sequence.asked.num_top)
            else:
                params = vllm_params(sequence, self._limits.eos_token_ids)
            internal_id = self._engine.add_request(name, prompt, params, lora_request=self._lora)
        except (ValueError, VLLMClientError) as error:  # of this row alone
            sequence.fail(f"vLLM refuses it: {in_one_line(error)}")
            self._ended.append(sequence)
        else:
            self._running[name] = Running(sequence, internal_id)

    def _take(self, output: Any) -> None:
        """Take what a step added to one request."""
        running = self._running.get(output.request_id)
        if running is None:
            return
        sequence = running.sequence
        if sequence.asked is not None:
            if output.prompt_logprobs is not None:
                if sequence.asked.take(asked_logprobs(output.prompt_logprobs, sequence.asked)):
                    sequence.finish_reason = "stop"
                else:
                    sequence.fail("vLLM's logits are not finite behind this text")
                self._end(output.request_id, output)
            return
        (completion,) = output.outputs
        request = self._requests.get(running.internal_id)
        metrics = completion.spec_decode_metrics if request is None else request.spec_decode_metrics
        running.take(completion, metrics, self._limits.eos_token_ids)
        self._check_form(sequence)
        sequence.num_cached_tokens = output.num_cached_tokens or 0
        if sequence.is_finished:
            self._end(output.request_id, output)

    def _end(self, name: str, output: Any) -> None:
        self._ended.append(self._running.pop(name).sequence)
        if not output.finished:  # a stop string, of which vLLM knows nothing, or the token behind a scored text
            self._engine.abort_request([name])

    def _check_form(self, sequence: Sequence) -> None:
        """Fail a sequence that has ended without the form that it should have."""
        structured = sequence.params.structured
        if structured is None or sequence.finish_reason != "stop":
            return
        if problem := self._forms.problem_with_end(structured, sequence.output_token_ids):
            sequence.fail(problem)

    @property
    def _stoppable(self) -> list[Sequence]:
        return self.in_flight

    def _stop(self, sequences: Set[Sequence]) -> None:
        names = [name for name, running in self._running.items() if running.sequence in sequences]
        for name in names:
            del self._running[name]
        self._engine.abort_request(names)

    def clear(self) -> None:
        super().clear()
        self._stop(set(self.in_flight))

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
        """Return why the engine cannot score this text, as `TokenEngine.problem_with_text`.

        vLLM writes a token behind each text that it scores, so a text is shorter than the context.
        """
        return self._limits.problem_with_text(text, num_behind=1)
