"""Runners: each knows how one configuration generates the corpus at one batch size, and times it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from benchmarks.decoder.configurations import Configuration
from benchmarks.decoder.corpus import Corpus, generate
from benchmarks.decoder.counts.recorder import ForwardRecorder, RawSeconds
from benchmarks.decoder.counts.round_count import count_round
from benchmarks.decoder.counts.whole_rounds import begin_anew, rounds_of
from benchmarks.decoder.counts.work import work_of
from benchmarks.decoder.results import Result, per_position
from benchmarks.decoder.shared_models import SharedModels
from benchmarks.harness import seconds_of
from decoding import Engine
from decoding.network.slot_network import Exact
from decoding.turns import Pass

WarmUp = tuple[Result, list[list[int]]]


@dataclass(frozen=True, kw_only=True)
class Repeat(Pass):
    """What a timed pass took and wrote."""

    raw: RawSeconds | None = None  # of its forwards alone, where they can be had
    outputs: list[list[int]] | None = None  # of each row, where they must be those of every other pass


@dataclass
class Runner(ABC):
    """One configuration at one batch size."""

    configuration: Configuration
    batch: int
    corpus: Corpus
    num_rows: int

    @property
    def label(self) -> str:
        return f"{self.configuration.name}@{self.batch}"

    @abstractmethod
    def warm_up(self) -> WarmUp:
        """Generate once, untimed: the counts, and the output of each row."""

    @abstractmethod
    def repeat(self) -> Repeat:
        """Generate once, timed."""

    def shown(self, outputs: list[list[int]], **counts: Any) -> WarmUp:
        """Return these outputs, and the result that they and the counts make."""
        num_tokens = sum(map(len, outputs))
        result = Result(
            name=self.configuration.name,
            batch=self.batch,
            num_rows=self.num_rows,
            num_output_tokens=num_tokens,
            **counts,
        )
        return result, outputs


@dataclass
class EngineRunner(Runner):
    """Our engine, a new one for every repeat."""

    models: SharedModels
    with_raw: bool
    exact: Exact = "auto"
    draft_window: int | None = None
    _recorder: ForwardRecorder | None = field(default=None, init=False)

    def engine(self) -> Engine:
        """Return a new engine of this configuration."""
        how = self.batch, self.corpus.max_model_len, self.exact, self.draft_window
        return self.models.engine(self.configuration.engine_options(*how))

    def warm_up(self) -> WarmUp:
        """Run once, with the recorder in front of the models; then some rounds, whose launches are counted."""
        engine = self.engine()
        recorder = ForwardRecorder(self.models.by_role)
        samples = self.corpus.sequences(self.num_rows)
        rounds: list[tuple[int, int]] = []
        for sample in samples:
            sample.commit = partial(_commit, sample.commit, rounds)  # type: ignore[method-assign]
        with recorder.recording():
            generate(engine, samples)
        self._recorder = recorder if self.with_raw else None
        rows = self.corpus.sequences(min(self.batch, self.num_rows))
        launches = count_round(self.engine(), list(self.models.by_role.values()), rows)
        drafted, tried, accepted = per_position(rounds)
        return self.shown(
            [sample.output_token_ids for sample in samples],
            num_rounds=sum(sample.num_rounds for sample in samples),
            num_draft_tokens=sum(sample.num_draft_tokens for sample in samples),
            num_accepted_tokens=sum(sample.num_accepted_tokens for sample in samples),
            drafted_per_position=drafted,
            tried_per_position=tried,
            accepted_per_position=accepted,
            num_target_forwards=recorder.count("target"),
            work=work_of(recorder),
            launches_per_round=launches,
        )

    def repeat(self) -> Repeat:
        """Time the run, then every shape of its forwards."""
        num_allocations = self.models.num_allocations
        engine = self.engine()
        # Memory that was never touched and graphs that must be recorded are not what is measured.
        if self.models.holds_one_cache or self.models.num_allocations > num_allocations:
            generate(engine, self.corpus.sequences(self.num_rows))
            engine = begin_anew(engine, self.engine())
        samples = self.corpus.sequences(self.num_rows)
        seconds = seconds_of(partial(generate, engine, samples), engine.target.device)
        assert all(len(sample.output_token_ids) == self.corpus.new_tokens for sample in samples)
        raw = self._recorder.replay(rounds_of(engine)) if self._recorder else None
        return Repeat(seconds=seconds, raw=raw, outputs=[sample.output_token_ids for sample in samples])


def _commit(commit: Callable[..., None], rounds: list[tuple[int, int]], tokens: Sequence[int], **kwargs: Any) -> None:
    rounds.append((kwargs["num_draft_tokens"], len(tokens) - 1))
    commit(tokens, **kwargs)
