"""Replica: an engine behind Ray Serve. Token ids in, deltas out; it knows no HTTP.

All requests share the engine's slots. A request that cannot be served (the queue is full, the prompt cannot be run)
gets a `NotDoneError` in place of tokens. A request that is cancelled, or recalled since its ingress is lost, frees its
slots within a step. Units of batches fill the slots that requests leave, and are committed as those of a job.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import replace
from typing import Any

import torch
from ray.exceptions import RayError, RayTaskError

from actors.engine.loop import EngineStats
from actors.engine.requests import (
    BusyError,
    EngineFacts,
    FailedError,
    Generation,
    NotDoneError,
    OtherModelError,
    Outcome,
    RefusedError,
    Scoring,
    Standing,
)
from actors.engine.watchdog import end_process
from actors.engines.loading import LoadedEngine
from actors.errors import DeviceFault, describe
from actors.settings import GeneratorSettings
from actors.settings import ReplicaSettings as ReplicaSettings
from actors.workers.batch_worker import SharedEngine, UnitOrder, do_unit
from actors.workers.recall import Recalls
from decoding.engine.draft_folder import read_replacement
from decoding.engine.scored_text import ScoredText
from decoding.sampling.rules import least_margin
from decoding.sampling_params import SamplingParams
from decoding.scope import Scope
from decoding.sequence import Sequence, TokenLogprobs
from pipeline.logs import Event, LogSettings, failure_event, set_up_logs
from pipeline.ray_internals import keep_serve_on_loopback
from pipeline.run.commit import Receipt
from pipeline.streaming.calls import UnitError
from pipeline.text.text_behind import StopStrings

_BATCH_SIGN_S = 1.0  # between two signs of life of batches' rows
_INGRESS_ENDS_IT_WITHIN_S = 5.0  # after the request's time is over, unless the ingress is lost
_PROBE = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
_log = logging.getLogger(__name__)


class Replica:
    """An engine that belongs to one event loop: Ray Serve's, or a test's."""

    def __init__(
        self,
        settings: GeneratorSettings,
        replica_settings: ReplicaSettings | None = None,
        log_settings: LogSettings | None = None,
        roster: Any = None,
    ) -> None:
        """Load the models into a LoadedEngine, which takes `roster`. Raises ValueError if they cannot be run."""
        keep_serve_on_loopback()
        self._settings = replica_settings or ReplicaSettings()
        if log_settings is not None:
            set_up_logs(log_settings)
        self._engine = LoadedEngine(settings, roster, self._settings.hang_timeout_s, self._settings.num_reserved)
        self._codec, self._loop = self._engine.codec, self._engine.loop
        self._shared = SharedEngine(
            engine=self._engine,
            scope_of=self._settings.scope_of,
            finish=self._finish_in_background,
        )
        self._num_unfinished = 0  # sequences
        self._recalls = Recalls()
        self._last_token_at = float("-inf")
        self._trial: asyncio.Task[None] | None = None  # a trial whether the engine writes
        self._models, self._draft = settings.models, settings.models.draft  # the latter is in use, or about to be
        self._swap: asyncio.Task[None] | None = None  # of the draft
        _log.info(Event("replica loaded", **self._engine.facts))

    async def reconfigure(self, config: Mapping[str, Any]) -> None:
        """Begin to use the draft that `config` names, which changes no text; Ray Serve calls this.

        The weights are read beside the requests, and the engine takes them between two steps. A draft that cannot be
        used is logged, and the one before stays.
        """
        draft = config.get("draft")
        if draft is not None and draft != self._draft:
            self._draft = draft
            self._swap = asyncio.create_task(self._use_draft(draft, self._swap))

    async def _use_draft(self, draft: str, earlier: asyncio.Task[None] | None) -> None:
        if earlier is not None:
            await earlier
        models = self._models
        assert models.draft is not None, "an engine without a draft has none to replace"
        version = self._loop.engine.draft_version + 1
        try:
            weights = await asyncio.to_thread(read_replacement, draft, models.draft, models.dtype, models.target)
            await asyncio.to_thread(self._loop.replace_draft, weights, version)
        except Exception as error:  # noqa: BLE001 - the engine goes on with the draft that it has
            _log.error(Event("draft refused", draft=draft, reason=describe(error)))
            return
        _log.info(Event("draft replaced", draft=draft, version=version))

    async def facts(self) -> EngineFacts:
        """Return the engine's limits and fingerprint."""
        engine = self._loop.engine
        num_drafted = engine.options.num_speculative_tokens
        return EngineFacts(
            engine.max_model_len,
            engine.vocab_size,
            num_drafted,
            self._settings.fingerprint,
            engine.controls_drafts,
            engine.eos_token_ids,
            self._engine.facts.get("drafter", ""),
        )

    def stats(self) -> EngineStats:
        """Return what the engine does now."""
        return self._loop.stats()

    async def generate(self, generation: Generation) -> AsyncIterator[Outcome]:
        """Yield how the samples stand before their first token, and then their tokens as they are written.

        The last delta of each sample has its ending. If the request is not done, the last item says why.
        """
        try:
            taken = self._taken(generation.fingerprint, generation.num_sequences)
            with taken, self._recalls.registered(generation, _INGRESS_ENDS_IT_WITHIN_S) as recall:
                yield Standing.WAITS
                if generation.params.structured is None:
                    sequences = self._sequences(generation)
                else:  # to compile a grammar may take seconds, which other requests must not wait for
                    sequences = await asyncio.to_thread(self._sequences, generation)
                async with aclosing(self._loop.stream(sequences, generation.send_every_s)) as stream:  # type: ignore[type-var]
                    async for deltas in recall.until(stream):
                        if deltas:
                            self._last_token_at = time.monotonic()
                        yield deltas or Standing.BEGINS
        except Exception as error:  # noqa: BLE001 - handed on without its message
            yield _not_done(error, generation.request_id)

    def recall(self, call: str, attempt: int) -> None:
        """End what an earlier attempt still writes: Ray does not tell a replica that its caller is lost."""
        self._recalls.recall(call, attempt)

    async def score(self, scoring: Scoring) -> list[list[TokenLogprobs]] | NotDoneError:
        """Return the log-probabilities of each prompt's tokens but the first, or why there are none.

        With `has_next` an entry of the likeliest token behind a prompt follows, if it is the one that the engine writes
        there without noise (`endpoint/answers/logprobs.py` reads it): the runner-up is further away than rounding
        could bring it.
        """
        close_call = self._loop.engine.close_call if scoring.has_next else 0.0
        scope = self._settings.scope_of(scoring.owner)
        try:
            texts = [_scored_text(prompt, scoring, scope, has_next=close_call > 0) for prompt in scoring.prompts]
            with self._taken(scoring.fingerprint, len(texts)):
                for text in texts:
                    if problem := self._loop.engine.problem_with_text(text):
                        raise RefusedError(problem)
                await self._loop.score(texts)
        except Exception as error:  # noqa: BLE001 - handed on without its message
            return _not_done(error, scoring.request_id)
        if any(text.error is not None for text in texts):
            return FailedError("the engine failed over a text that is scored")  # the loop has logged why
        self._last_token_at = time.monotonic()  # scores are a sign of life
        scores = [logprobs for text in texts for logprobs in text.scores]
        return [_with_next(logprobs, close_call) for logprobs in scores] if close_call else scores

    async def write_unit(self, order: UnitOrder) -> Receipt | UnitError | OtherModelError | None:
        """Do a unit of a batch in the background, and return what `do_unit` returns, or OtherModelError."""
        if order.fingerprint and order.fingerprint != self._settings.fingerprint:
            return OtherModelError("this engine writes another text than the one that was asked for")
        return await do_unit(self._shared, order)

    async def _finish_in_background(self, sequences: list[Sequence]) -> None:
        stream = self._loop.stream(sequences, _BATCH_SIGN_S, in_background=True)
        async with aclosing(stream) as deltas:  # type: ignore[type-var]
            async for _ in deltas:
                self._last_token_at = time.monotonic()

    async def check_health(self) -> None:
        """Check that the engine has written or scored a token lately, or writes one now. Raises what is wrong with it.

        Ray Serve calls this regularly, and replaces a replica that raises several times in a row.
        """
        if (rollback := self._loop.engine.take_rollback()) is not None:
            shares = {"before": round(rollback.before, 3), "after": round(rollback.after, 3)}
            _log.warning(Event("draft rolled back", version=rollback.version, **shares))
        if time.monotonic() - self._last_token_at < self._settings.fresh_s:
            return
        if self._trial is None or self._trial.done():  # one trial for all calls that come meanwhile
            self._trial = asyncio.create_task(self._try())
        await asyncio.shield(self._trial)

    async def _try(self) -> None:
        probe = Sequence.create([0], _PROBE)
        try:
            await asyncio.wait_for(self._loop.finish([probe]), self._settings.probe_timeout_s)
        except TimeoutError as error:
            if time.monotonic() - self._last_token_at < self._settings.probe_timeout_s:
                return  # it waited in a full queue, and others wrote
            raise RuntimeError(f"the engine wrote no token in {self._settings.probe_timeout_s:g} s") from error
        except Exception as error:  # noqa: BLE001 - over whatever else the engine did
            _log.error(failure_event("engine failed", error))
            raise RuntimeError(f"the engine failed: {type(error).__name__}") from None
        if probe.error is not None:
            raise RuntimeError(f"the engine failed over a single token: {probe.error}")
        self._last_token_at = time.monotonic()

    @contextmanager
    def _taken(self, fingerprint: str, num_sequences: int) -> Iterator[None]:
        """Count a request's sequences while the block runs. Raises OtherModelError or BusyError for one not taken."""
        if fingerprint and fingerprint != self._settings.fingerprint:
            raise OtherModelError("this engine writes another text than the one that was asked for")
        if self._num_unfinished >= self._loop.engine.options.slots + self._settings.max_waiting:
            raise BusyError("too many requests wait already")
        self._num_unfinished += num_sequences
        try:
            yield
        finally:
            self._num_unfinished -= num_sequences

    def _sequences(self, generation: Generation) -> list[Sequence]:
        engine, sequences = self._loop.engine, []
        for prompt, seed in zip(generation.prompts, generation.seeds, strict=True):
            params = replace(generation.params, seed=seed)
            codec = self._codec.of_all_tokens if generation.shows_special else self._codec
            stop_condition = StopStrings(codec, params.stop, prompt).find if params.stop else None
            for sample in range(params.n):
                sequence = Sequence.create(
                    prompt,
                    params,
                    sample=sample,
                    stop_condition=stop_condition,
                    num_speculative_tokens=generation.num_speculative_tokens,
                    scope=self._settings.scope_of(generation.owner),
                )
                problem = engine.problem_with(sequence) if sample == 0 else None
                if problem is not None:
                    raise RefusedError(problem)
                sequence.max_tokens = min(sequence.max_tokens, engine.max_model_len - len(prompt))
                sequences.append(sequence)
        return sequences


def _not_done(error: Exception, request_id: str) -> NotDoneError:
    """Return what to say of a request over which this was raised, whose message may quote a prompt.

    Raises the error itself if another process was lost, and ends this one if its device failed: the request then goes
    on at another replica.
    """
    if isinstance(error, DeviceFault):
        end_process(Event("replica lost its device", cause=str(error), request_id=request_id))
    if isinstance(error, NotDoneError):
        return error
    if isinstance(error, RayError) and not isinstance(error, RayTaskError):
        raise error
    _log.error(failure_event("engine failed", error, request_id=request_id))
    return FailedError(f"the engine failed: {type(error).__name__}")


def _scored_text(prompt: tuple[int, ...], scoring: Scoring, scope: Scope, *, has_next: bool) -> ScoredText:
    """Return the text to score. For what is likely behind a prompt, any token is asked for there, which is not read."""
    if not has_next:
        return ScoredText.whole(prompt, scoring.num_top, has_ranks=scoring.has_ranks, scope=scope)
    return ScoredText.whole((*prompt, 0), max(2, scoring.num_top), has_ranks=scoring.has_ranks, scope=scope)


def _with_next(logprobs: list[TokenLogprobs], close_call: float) -> list[TokenLogprobs]:
    """Return the scores of a prompt, and the entry of the token that follows if no other one comes near it.

    It has to be twice as far away as where a round calls it close, since the forward that scores rounds, too.
    """
    *own, behind = logprobs
    (_, best), (_, second), *_ = behind.top
    assert behind.best_logit is not None, "likely tokens were asked for"
    logit = torch.tensor(behind.best_logit)
    margin = 2 * float(least_margin(logit, logit, close_call))
    return [*own, TokenLogprobs(best, behind.top)] if best - second > margin else own
