"""measure: one run. Everything is loaded, then every repeat goes over all configurations in an order of its own."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch

from benchmarks.decoder.configurations import Configuration, select
from benchmarks.decoder.corpus import Corpus, make_corpus
from benchmarks.decoder.memory import measure_memory
from benchmarks.decoder.options import BenchOptions
from benchmarks.decoder.peers import PeerError, PeerRunner, Peers
from benchmarks.decoder.recorder import RawSeconds
from benchmarks.decoder.results import Report, Result, share_equal
from benchmarks.decoder.runners import EngineRunner, Runner
from benchmarks.decoder.shared_models import SharedModels
from benchmarks.decoder.transformers_runner import TransformersModels, TransformersRunner
from benchmarks.hardware import (
    copy_bandwidth,
    describe_machine,
    read_bandwidth,
    versions,
)
from benchmarks.pair_factory import cached_pair

Tell = Callable[[str], None]


@dataclass
class _Entry:
    """A runner and what it has shown so far."""

    runner: Runner
    result: Result
    outputs: list[list[int]]
    seconds: list[float]
    raw: list[RawSeconds]
    failure: str | None = None  # a peer that died on the way


def measure(options: BenchOptions, command: str, tell: Tell) -> Report:
    """Do everything the options ask for; `tell` hears what is going on, a line at a time."""
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device is cuda, but torch sees no CUDA device here")
    if options.pair is None:
        tell(f"pair: {options.size}, acceptance {options.languages or options.acceptance} ...")
    pair = options.pair or cached_pair(
        options.cache, options.size, options.acceptance, options.dtype, options.languages, options.device
    )
    corpus = make_corpus(options, pair)
    models = SharedModels(str(pair / "target"), str(pair / "draft"), options.device, options.dtype)
    tell(f"corpus: {corpus.kind}, {len(corpus.prompts)} prompts, {corpus.new_tokens} new tokens a row")
    with Peers(options, pair, torch.get_num_threads()) as peers:
        bench = _Bench(options, pair, corpus, models, peers, tell)
        results = bench.run()
    return Report(
        command=command,
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        machine=describe_machine(models.target.device),
        versions=versions() | peers.versions,
        pair=_describe_pair(pair, models),
        options=options.to_dict() | {"corpus": corpus.kind},
        copy_bandwidth=bench.copy_bandwidth,
        read_bandwidth=read_bandwidth(models.target.device),
        target_bytes=models.target.num_bytes_read,
        results=tuple(results),
    )


class _Bench:
    def __init__(
        self, options: BenchOptions, pair: Path, corpus: Corpus, models: SharedModels, peers: Peers, tell: Tell
    ) -> None:
        self._options, self._pair, self._corpus = options, pair, corpus
        self._models, self._peers, self._tell = models, peers, tell
        self._transformers = TransformersModels(pair, options.device, options.dtype)
        self.copy_bandwidth = copy_bandwidth(models.target.device)

    def run(self) -> list[Result]:
        configurations = select(self._options.only)
        batches = sorted(set(self._options.batches))
        wanted = [(c, batch) for batch in batches for c in configurations if c.runs_at(batch)]
        reference = self._reference()
        entries: list[_Entry] = []
        missing: dict[int, Result] = {}
        for index, (configuration, batch) in enumerate(wanted):
            why = self._peers.missing(configuration.system)
            if why is None:
                self._tell(f"warm-up {index + 1}/{len(wanted)}: {configuration.name}@{batch}")
                try:
                    entries.append(self._warmed_up(self._runner(configuration, batch), reference))
                except PeerError as error:
                    why = _failure(error)
                    self._tell(f"{configuration.name} {error}")
            if why is not None:
                missing[index] = Result(
                    name=configuration.name, batch=batch, num_rows=0, num_output_tokens=0, seconds=(), missing=why
                )
        self._repeat(entries)
        done = iter([self._finished(entry, entries) for entry in entries])
        return [missing[index] if index in missing else next(done) for index in range(len(wanted))]

    def _repeat(self, entries: list[_Entry]) -> None:
        """Run the repeats; each visits the batches in random order, and within a batch the configurations."""
        for repeat in range(self._options.repeats):
            rng = random.Random(self._options.seed * 1000 + repeat)
            batches = sorted({entry.runner.batch for entry in entries})
            rng.shuffle(batches)
            for batch in batches:
                here = [entry for entry in entries if entry.runner.batch == batch and not entry.failure]
                rng.shuffle(here)
                for entry in here:
                    try:
                        seconds, raw = entry.runner.repeat()
                    except PeerError as error:
                        entry.failure = _failure(error)
                        self._tell(f"{entry.result.label} {error}")
                        continue
                    entry.seconds.append(seconds)
                    entry.raw += [raw] if raw else []
                    speed = entry.result.num_output_tokens / seconds
                    self._tell(
                        f"repeat {repeat + 1}/{self._options.repeats}: {entry.result.label} {speed:,.1f} tokens/s"
                    )

    def _runner(self, configuration: Configuration, batch: int) -> Runner:
        num_rows = self._options.num_rows(batch)
        match configuration.system:
            case "engine":
                return EngineRunner(configuration, batch, self._corpus, num_rows, self._models, self._options.raw)
            case "transformers":
                return TransformersRunner(configuration, batch, self._corpus, num_rows, self._transformers)
            case _:
                return PeerRunner(configuration, batch, self._corpus, num_rows, self._peers)

    def _warmed_up(self, runner: Runner, reference: list[list[int]] | None) -> _Entry:
        result, outputs = runner.warm_up()
        if reference is not None:
            result = replace(result, equal_to_transformers=share_equal(outputs, reference))
        return _Entry(runner, result, outputs, [], [])

    def _reference(self) -> list[list[int]] | None:
        """Return the greedy text of the first rows as transformers writes it, each row alone."""
        num_rows = min(self._options.reference, max(self._options.num_rows(b) for b in self._options.batches))
        if self._corpus.temperature or not num_rows:
            return None
        self._tell(f"reference: {num_rows} rows by transformers")
        return self._transformers.greedy(self._corpus.rows(num_rows), self._corpus.new_tokens)

    def _finished(self, entry: _Entry, entries: list[_Entry]) -> Result:
        if entry.failure:
            return replace(entry.result, missing=entry.failure)
        result = replace(
            entry.result,
            seconds=tuple(entry.seconds),
            raw_prefill=tuple(raw.prefill for raw in entry.raw),
            raw_target=tuple(raw.target for raw in entry.raw),
            raw_draft=tuple(raw.draft for raw in entry.raw),
        )
        beside = (e for e in entries if e.result.name == "plain" and e.result.batch == result.batch)
        if (plain := next(beside, None)) is not None:
            result = replace(result, equal_to_plain=share_equal(entry.outputs, plain.outputs))
        is_ours = entry.runner.configuration.system == "engine"
        if is_ours and any(fnmatchcase(result.label, pattern) for pattern in self._options.memory):
            self._tell(f"memory: {result.label}")
            result = replace(
                result,
                memory=measure_memory(
                    entry.runner.configuration,
                    result.batch,
                    self._corpus,
                    result.num_rows,
                    self._pair,
                    self._options.device,
                    self._options.dtype,
                    torch.get_num_threads(),
                ),
            )
        return result


def _failure(error: PeerError) -> str:
    return f"failed: {str(error).splitlines()[0]}"


def _describe_pair(pair: Path, models: SharedModels) -> dict[str, Any]:
    facts: dict[str, Any] = {"folder": pair.name, "target_bytes": models.target.num_weight_bytes}
    if models.draft:
        facts["draft_bytes"] = models.draft.num_weight_bytes
    description = pair / "pair.json"
    return facts | (json.loads(description.read_text()) if description.exists() else {})
