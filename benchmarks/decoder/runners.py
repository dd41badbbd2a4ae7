"""Runners: each knows how one configuration generates the corpus at one batch size, and times it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from benchmarks.decoder.configurations import Configuration
from benchmarks.decoder.corpus import Corpus
from benchmarks.decoder.recorder import ForwardRecorder, RawSeconds
from benchmarks.decoder.results import Result, per_position
from benchmarks.decoder.shared_models import SharedModels
from benchmarks.timing import seconds_of
from decoding import Engine, EngineOptions
from decoding.sequence import Sequence as Sample


class Runner(Protocol):
    """One configuration at one batch size."""

    configuration: Configuration
    batch: int

    def warm_up(self) -> tuple[Result, list[list[int]]]:
        """Generate once, untimed: the counts, and the output of each row."""
        ...

    def repeat(self) -> tuple[float, RawSeconds | None]:
        """Generate once; its seconds, and those of its forwards alone where they can be had."""
        ...


@dataclass
class EngineRunner:
    """Our engine, a new one for every repeat."""

    configuration: Configuration
    batch: int
    corpus: Corpus
    num_rows: int
    models: SharedModels
    with_raw: bool
    _recorder: ForwardRecorder | None = field(default=None, init=False)

    def engine(self) -> Engine:
        """Return a new engine with these EngineOptions."""
        return self.models.engine(
            EngineOptions(
                num_slots=self.batch,
                max_model_len=self.corpus.max_model_len,
                drafter=self.configuration.drafter,
                num_speculative_tokens=self.configuration.num_draft_tokens,
                draft_length=self.configuration.draft_length,
            )
        )

    def warm_up(self) -> tuple[Result, list[list[int]]]:
        """Run once, with the recorder in front of the models."""
        engine = self.engine()
        models = {"target": self.models.target} | ({"draft": self.models.draft} if self.models.draft else {})
        recorder = ForwardRecorder(models)  # type: ignore[arg-type]  # the keys are the two roles
        samples = self.corpus.sequences(self.num_rows)
        rounds: list[tuple[int, int]] = []
        for sample in samples:
            sample.commit = partial(_commit, sample.commit, rounds)  # type: ignore[method-assign]
        with recorder.recording():
            _generate(engine, samples)
        self._recorder = recorder if self.with_raw else None
        drafted, tried, accepted = per_position(rounds)
        result = Result(
            name=self.configuration.name,
            batch=self.batch,
            num_rows=self.num_rows,
            num_output_tokens=sum(len(sample.output_token_ids) for sample in samples),
            seconds=(),
            num_rounds=sum(sample.num_rounds for sample in samples),
            num_draft_tokens=sum(sample.num_draft_tokens for sample in samples),
            num_accepted_tokens=sum(sample.num_accepted_tokens for sample in samples),
            drafted_per_position=drafted,
            tried_per_position=tried,
            accepted_per_position=accepted,
            num_target_forwards=recorder.count("target"),
        )
        return result, [sample.output_token_ids for sample in samples]

    def repeat(self) -> tuple[float, RawSeconds | None]:
        """Time the run, then every shape of its forwards."""
        num_allocations = self.models.num_allocations
        engine = self.engine()
        if self.models.num_allocations > num_allocations:  # memory that was never touched: not what is measured
            _generate(engine, self.corpus.sequences(self.num_rows))
            engine = self.engine()
        samples = self.corpus.sequences(self.num_rows)
        seconds = seconds_of(partial(_generate, engine, samples), engine.target.device)
        assert all(len(sample.output_token_ids) == self.corpus.new_tokens for sample in samples)
        return seconds, self._recorder.replay() if self._recorder else None


def _generate(engine: Engine, samples: Sequence[Sample]) -> None:
    for sample in engine.stream(samples):
        if sample.error:
            raise RuntimeError(f"the engine failed: {sample.error}")


def _commit(commit: Callable[..., None], rounds: list[tuple[int, int]], tokens: Sequence[int], **kwargs: Any) -> None:
    rounds.append((kwargs["num_draft_tokens"], len(tokens) - 1))
    commit(tokens, **kwargs)
