"""measure: one run. Everything is loaded, then every repeat goes over all configurations in an order of its own."""

import random
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

import torch

from benchmarks.decoder.configurations import Configuration, select
from benchmarks.decoder.corpus import Corpus, make_corpus
from benchmarks.decoder.counts.memory import Memory, measure_memory
from benchmarks.decoder.options import BenchOptions
from benchmarks.decoder.peers import PeerError, PeerRunner, Peers
from benchmarks.decoder.results import Report, Result, share_equal
from benchmarks.decoder.runners import EngineRunner, Repeat, Runner
from benchmarks.decoder.shared_models import SharedModels
from benchmarks.decoder.transformers_runner import TransformersModels, TransformersRunner
from benchmarks.harness import say, whole
from benchmarks.pair_factory import describe_pair
from benchmarks.roofline.hardware import copy_bandwidth, describe_machine, read_bandwidth, versions
from decoding.turns import one_repeat


@dataclass
class _Entry:
    """A runner and what it has shown so far."""

    runner: Runner
    result: Result
    texts: list[list[list[int]]] = field(default_factory=list)  # of each row, in each pass
    passes: list[Repeat] = field(default_factory=list)


def measure(options: BenchOptions, command: str) -> Report:
    """Do everything the options ask for."""
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device is cuda, but torch sees no CUDA device here")
    if options.pair is None:
        say(f"pair: {options.size}, acceptance {options.acceptance} ...")
    pair = options.pair_folder()
    corpus = make_corpus(options, pair)
    models = SharedModels(str(pair / "target"), str(pair / "draft"), options.device, options.dtype, options.exact)
    say(f"corpus: {corpus.kind}, {len(corpus.prompts)} prompts, {corpus.new_tokens} new tokens a row")
    with closing(Peers(options, pair, torch.get_num_threads())) as peers:
        bench = _Bench(options, pair, corpus, models, peers)
        results = bench.run()
    weights = {"target_bytes": models.target.num_weight_bytes, "draft_bytes": models.num_draft_bytes}
    return Report(
        command=command,
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        machine=describe_machine(models.target.device),
        versions=versions() | peers.versions,
        pair={"folder": pair.name, **weights, **describe_pair(pair)},
        options=asdict(options) | {"corpus": corpus.kind},
        copy_bandwidth=bench.copy_bandwidth,
        read_bandwidth=read_bandwidth(models.target.device),
        target_bytes=models.target.num_bytes_read,
        prompt_tokens=corpus.prompt_tokens,
        results=tuple(results),
    )


class _Bench:
    def __init__(self, options: BenchOptions, pair: Path, corpus: Corpus, models: SharedModels, peers: Peers) -> None:
        self._options, self._pair, self._corpus = options, pair, corpus
        self._models, self._peers = models, peers
        self._transformers = TransformersModels(pair, options.device, options.dtype)
        self.copy_bandwidth = copy_bandwidth(models.target.device)

    def run(self) -> list[Result]:
        configurations = select(self._options.only)
        batches = sorted(set(self._options.batches))
        runners = [self._runner(c, batch) for batch in batches for c in configurations if c.runs_at(batch)]
        reference = self._reference()
        entries: list[_Entry] = []
        for index, runner in enumerate(runners):
            say(f"warm-up {index + 1}/{len(runners)}: {runner.label}")
            try:
                result, outputs = runner.warm_up()
            except PeerError as error:
                say(f"{runner.label} is left out: {error}")
            else:
                entries.append(_Entry(runner, result, [outputs]))
        self._repeat(entries)
        return [self._finished(entry, entries, reference) for entry in entries]

    def _runner(self, configuration: Configuration, batch: int) -> Runner:
        what = (configuration, batch, self._corpus, self._options.num_rows(batch))
        if configuration.system == "engine":
            return EngineRunner(*what, self._models, self._options.raw, self._options.exact, self._options.draft_window)
        if configuration.system == "transformers":
            return TransformersRunner(*what, self._transformers)
        return PeerRunner(*what, self._peers)

    def _reference(self) -> list[list[int]] | None:
        """Return the greedy text of the first rows as transformers writes it, each row alone."""
        num_rows = min(self._options.reference, max(self._options.num_rows(b) for b in self._options.batches))
        if not self._corpus.is_greedy or not num_rows:
            return None
        say(f"reference: {num_rows} rows by transformers")
        return self._transformers.greedy(self._corpus.rows(num_rows), self._corpus.new_tokens)

    def _repeat(self, entries: list[_Entry]) -> None:
        """Run the repeats; each visits the batches in random order, and within a batch the configurations."""
        for repeat in range(self._options.repeats):
            seed, batches = self._options.seed * 1000 + repeat, sorted({entry.runner.batch for entry in entries})
            for batch in random.Random(seed).sample(batches, len(batches)):
                here = [entry for entry in entries if entry.runner.batch == batch]
                passes = {entry.runner.label: whole(partial(self._pass, entry)) for entry in here}
                one_repeat(passes, seed)

    def _pass(self, entry: _Entry, seed: int) -> Repeat:
        found = entry.runner.repeat()
        entry.passes.append(found)
        entry.texts += [found.outputs] if found.outputs else []
        number = f"{len(entry.passes)}/{self._options.repeats}"
        say(f"repeat {number}: {entry.runner.label} {entry.result.num_output_tokens / found.seconds:,.1f} tokens/s")
        return found

    def _finished(self, entry: _Entry, entries: list[_Entry], reference: list[list[int]] | None) -> Result:
        result = entry.result
        beside = [e.texts[0] for e in entries if (e.result.name, e.result.batch) == ("plain", result.batch) and e.texts]
        return replace(
            result,
            seconds=tuple(each.seconds for each in entry.passes),
            raw_prefill=tuple(each.raw.prefill for each in entry.passes if each.raw),
            raw_target=tuple(each.raw.target for each in entry.passes if each.raw),
            raw_draft=tuple(each.raw.draft for each in entry.passes if each.raw),
            equal_to_transformers=None if reference is None else _least_equal(entry.texts, reference),
            equal_to_plain=_least_equal(entry.texts, beside[0]) if beside else None,
            memory=self._memory(entry.runner),
        )

    def _memory(self, runner: Runner) -> Memory | None:
        """Return the peak memory of one of our configurations, if the options ask for it."""
        is_wanted = any(fnmatchcase(runner.label, pattern) for pattern in self._options.memory)
        if runner.configuration.system != "engine" or not is_wanted:
            return None
        say(f"memory: {runner.label}")
        how = runner.batch, self._corpus.max_model_len, self._options.exact, self._options.draft_window
        options = runner.configuration.engine_options(*how)
        device, dtype = self._options.device, self._options.dtype
        return measure_memory(self._corpus, runner.num_rows, self._pair, device, dtype, options)


def _least_equal(texts: list[list[list[int]]], theirs: list[list[int]]) -> float | None:
    """Return the share of equal rows in the pass that has the fewest."""
    shares = [share for outputs in texts if (share := share_equal(outputs, theirs)) is not None]
    return min(shares, default=None)
