"""Contender: an engine in a process of its own, which writes the same prompts when it is asked to."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from itertools import zip_longest
from multiprocessing import get_context
from typing import Any, Literal

from actors.engine.loop import EngineLoop
from actors.engines import backend_of
from actors.engines.loading import in_own_thread
from actors.settings import GeneratorSettings
from decoding.engine.scored_text import ScoredText
from decoding.sampling_params import SamplingParams
from decoding.sequence import Sequence
from decoding.turns import Pass

How = Literal["dray", "vllm", "LLM.generate"]
Prompt = tuple[int, tuple[int, ...]]  # a row's place in the input, and its tokens


@dataclass(frozen=True, kw_only=True)
class Written(Pass):
    """One pass over the prompts; what is done are tokens."""

    outputs: list[list[int]]
    num_rounds: int = 0
    num_drafted: int = 0
    accepted_per_position: list[int] = field(default_factory=list)


class Contender:
    """A handle of the process; `name` is what the table calls it. As a context it ends the process."""

    def __init__(self, name: str, how: How, settings: GeneratorSettings) -> None:
        """Start the process, which loads the models. Raises RuntimeError if it cannot."""
        self.name = name
        self._process = ProcessPoolExecutor(1, get_context("spawn"))
        self._do(_load, how, settings)

    def write(self, prompts: Seq[Prompt], params: SamplingParams) -> Written:
        """Let it write all prompts, and return what it wrote and how long it took."""
        written: Written = self._do(_ask, "write", list(prompts), params)
        return written

    def score(self, token_ids: Seq[int], candidate: int) -> float:
        """Return how much likelier the last of these tokens is than the `candidate`, in natural logarithms."""
        margin: float = self._do(_ask, "score", list(token_ids), candidate)
        return margin

    def close(self) -> None:
        """End the process."""
        self._process.shutdown()

    def _do(self, work: Callable[..., Any], *values: Any) -> Any:
        try:
            return self._process.submit(work, *values).result()
        except BrokenProcessPool:
            raise RuntimeError(f"{self.name}: its process ended; its output says why") from None
        except Exception as error:
            raise RuntimeError(f"{self.name}: {type(error).__name__}: {error}") from error


_LOADED: list[_Own | _LlmGenerate] = []  # of a contender's process: the one that writes


def _load(how: How, settings: GeneratorSettings) -> None:
    _LOADED.append(_LlmGenerate(settings) if how == "LLM.generate" else _Own(settings))


def _ask(name: str, *values: Any) -> Any:
    return getattr(_LOADED[0], name)(*values)


class _Own:
    """An engine as a worker has it, in an EngineLoop."""

    def __init__(self, settings: GeneratorSettings) -> None:
        self._seed = settings.seed
        engine = in_own_thread(backend_of(settings).load).engine  # as a worker does
        self._events = asyncio.new_event_loop()
        self._loop = EngineLoop(engine)

    def write(self, prompts: Seq[Prompt], params: SamplingParams) -> Written:
        rows = [Sequence.create(tokens, params, run_seed=self._seed, row=row) for row, tokens in prompts]
        started = time.perf_counter()
        self._events.run_until_complete(self._loop.finish(rows))
        seconds = time.perf_counter() - started
        if failed := next((row for row in rows if row.error is not None), None):
            raise RuntimeError(f"a row failed: {failed.error}")
        accepted = [sum(row) for row in zip_longest(*(row.accepted_per_position for row in rows), fillvalue=0)]
        return Written(
            seconds=seconds,
            done=sum(len(row.output_token_ids) for row in rows),
            outputs=[row.output_token_ids for row in rows],
            num_rounds=sum(row.num_rounds for row in rows),
            num_drafted=sum(row.num_draft_tokens for row in rows),
            accepted_per_position=accepted,
        )

    def score(self, token_ids: Seq[int], candidate: int) -> float:
        """Return how much likelier the last token is than the candidate; both get the same text before them."""
        text = ScoredText(tuple(token_ids[:-1]), ((token_ids[-1],), (candidate,)))
        self._events.run_until_complete(self._loop.score([text]))
        if text.error is not None:
            raise RuntimeError(f"a text was not scored: {text.error}")
        (own,), (other,) = text.scores
        return own.logprob - other.logprob


class _LlmGenerate:
    """vLLM as its own documentation uses it offline."""

    def __init__(self, settings: GeneratorSettings) -> None:
        from actors.vllm.arguments import engine_arguments, prepare_environment

        prepare_environment(settings.engine.vllm_env)
        import vllm

        from actors.vllm.expansion import mend_expansion

        self._vllm = vllm
        arguments = engine_arguments(settings, on_processor=settings.models.device == "cpu")
        self._llm = vllm.LLM(**{**arguments, "per_request_spec_decode_metrics": "none"})
        mend_expansion()

    def write(self, prompts: Seq[Prompt], params: SamplingParams) -> Written:
        asked = self._vllm.SamplingParams(
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            max_tokens=params.max_tokens,
            ignore_eos=params.ignore_eos,
            detokenize=False,
        )
        inputs = [{"prompt_token_ids": list(tokens)} for _, tokens in prompts]
        started = time.perf_counter()
        outputs = self._llm.generate(inputs, asked, use_tqdm=False)
        seconds = time.perf_counter() - started
        written = [list(output.outputs[0].token_ids) for output in outputs]
        return Written(seconds=seconds, done=sum(map(len, written)), outputs=written)
