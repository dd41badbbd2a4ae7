"""`python -m benchmarks.split`: draft and target apart against both in one process, on the same cores.

python -m benchmarks.split --size small --acceptance 0.8 --batches 4,16
python -m benchmarks.split --pair examples/tiny_pair --temperature 0.8 --json out/split.json

Colocated, one process has all the threads (`--threads`); split, the target has all but those of the draft actor
(`--draft-threads`). Every repeat runs all configurations in an order of its own, and medians are reported.
"""

import argparse
import random
import sys
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median

import ray
import torch

from actors.drafts.link import LinkStats
from actors.drafts.remote_drafter import DraftLinks
from actors.drafts.roster import start_roster
from actors.engines.dray import load_engine
from actors.placement import DraftSettings
from actors.settings import EngineSettings, GeneratorSettings, ModelSettings
from benchmarks.decoder.configurations import engine_configuration
from benchmarks.decoder.corpus import Corpus, generate, make_corpus
from benchmarks.decoder.options import BenchOptions, add_flags
from benchmarks.hardware import describe_machine, versions
from benchmarks.harness import listed, say, seconds_of, show, write_json
from benchmarks.scale.runs import start_own_ray
from pipeline.logs import LogSettings

_HEADINGS = ["configuration", "batch", "tokens/s", "xcolocated", "ideal/s", "efficiency"]
_HEADINGS += ["hidden", "bytes/row", "accepted", "=colocated"]
_LEGEND = (
    "tokens/s: output tokens over the time of the whole corpus, by the median repeat; ideal: the same run if it took "
    "no longer than the busier of target and draft actor; efficiency: tokens/s over ideal; hidden: share of the draft "
    "actor's time that no round waited for; bytes/row: there and back for a row and round, tokens of new rows not "
    "counted; =colocated: share of rows with the tokens of the colocated run"
)


@dataclass
class Measured:
    """A configuration and what its repeats have shown."""

    name: str
    batch: int
    num_rows: int
    threads: int  # of the engine's process
    is_split: bool
    seconds: list[float] = field(default_factory=list)
    wait_seconds: list[float] = field(default_factory=list)
    draft_seconds: list[float] = field(default_factory=list)
    bytes_per_row: list[float] = field(default_factory=list)
    outputs: list[list[int]] = field(default_factory=list)
    num_drafted: int = 0
    num_accepted: int = 0

    def forget(self) -> None:
        """Drop the repeats so far."""
        for values in (self.seconds, self.wait_seconds, self.draft_seconds, self.bytes_per_row):
            values.clear()

    @property
    def num_tokens(self) -> int:
        """Output tokens of a repeat."""
        return sum(map(len, self.outputs))

    @property
    def ideal_seconds(self) -> float:
        """If target and draft actor worked side by side without a wait. Colocated there is nothing to hide."""
        sides = zip(self.seconds, self.wait_seconds, self.draft_seconds, strict=True)
        return median(max(seconds - wait, draft) for seconds, wait, draft in sides)

    @property
    def share_hidden(self) -> float | None:
        """Share of the draft actor's time that is hidden; None without a draft actor."""
        sides = zip(self.wait_seconds, self.draft_seconds, strict=True)
        shares = [1 - min(wait / draft, 1.0) for wait, draft in sides if draft]
        return median(shares) if shares else None


class Side:
    """A placement: an engine, and how to count what it did."""

    def __init__(self, measured: Measured, settings: GeneratorSettings, run: str) -> None:
        self.measured = measured
        torch.set_num_threads(measured.threads)
        self._links = None
        if measured.is_split:
            self._links = DraftLinks(settings, start_roster(settings, run, LogSettings(level="error"), 1))
        self.engine = load_engine(settings, self._links)
        self._check_drafts()

    def close(self) -> None:
        if self._links is not None:
            self._links.close()

    def repeat(self, corpus: Corpus) -> None:
        """Generate the corpus once more, by an engine that has learned nothing."""
        measured = self.measured
        torch.set_num_threads(measured.threads)
        self.engine.resize(measured.batch)
        before, drafting_before = self._stats()
        sequences = corpus.sequences(measured.num_rows)
        measured.seconds.append(seconds_of(partial(generate, self.engine, sequences)))
        after, drafting = self._stats()
        num_rows = after.num_rows - before.num_rows
        measured.wait_seconds.append(after.wait_seconds - before.wait_seconds)
        measured.draft_seconds.append(drafting - drafting_before)
        measured.bytes_per_row.append((_crossing(after) - _crossing(before)) / num_rows if num_rows else 0.0)
        measured.outputs = [sequence.output_token_ids for sequence in sequences]
        measured.num_drafted = sum(sequence.num_draft_tokens for sequence in sequences)
        measured.num_accepted = sum(sequence.num_accepted_tokens for sequence in sequences)
        self._check_drafts()

    def _check_drafts(self) -> None:
        """Raise RuntimeError without a draft actor: what is measured then is no split."""
        if self._links is not None and not self._links.are_up:
            self._links.close()
            raise RuntimeError(f"{self.measured.name}: its draft actor is out of reach")

    def _stats(self) -> tuple[LinkStats, float]:
        """Return what travelled so far, and how long the draft actor was busy."""
        if self._links is None:
            return LinkStats(), 0.0
        return self._links.stats, sum(stats["draft_seconds"] for stats in self._links.actor_stats())


def main(arguments: Seq[str] | None = None) -> int:
    """Measure, and return 0, or 2 if something cannot be measured."""
    given = _parse(arguments)
    try:
        options = BenchOptions.of(given)
        if given.threads <= given.draft_threads:
            raise ValueError(f"--threads {given.threads} must be more than --draft-threads {given.draft_threads}")
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    start_own_ray()
    try:
        found = measure(options, given.threads, given.draft_threads, given.drafts)
    finally:
        ray.shutdown()
    print_table(found)
    if given.json is not None:
        results = [replace(measured, outputs=[]) for measured in found]
        facts = {"machine": describe_machine(), "versions": versions(), "options": options, "results": results}
        write_json(given.json, facts)
    return 0


def measure(options: BenchOptions, threads: int, draft_threads: int, lengths: Seq[str]) -> list[Measured]:
    """Measure every configuration at every batch, as often as the options say."""
    pair = options.pair_folder()
    corpus = make_corpus(options, pair)
    models = ModelSettings(target=str(pair / "target"), draft=str(pair / "draft"), device="cpu", dtype=options.dtype)
    found: list[Measured] = []
    for batch in options.batches:
        sides: list[Side] = []
        for length in lengths:
            for placement, own_threads in (("colocated", threads), ("split", threads - draft_threads)):
                name, is_split = f"{placement} {length}", placement == "split"
                measured = Measured(name, batch, options.num_rows(batch), own_threads, is_split)
                say(f"loading {name}@{batch} ...")
                engine = engine_configuration(length).engine_options(batch, corpus.max_model_len)
                settings = GeneratorSettings(
                    models=models,
                    engine=EngineSettings(**vars(engine)),
                    drafts=DraftSettings(num_cpus=draft_threads, timeout_s=60.0),
                    placement="split" if is_split else "colocated",
                )
                sides.append(Side(measured, settings, name))
        for repeat in range(-1, options.repeats):  # the first one warms up
            for side in random.Random(options.seed * 1000 + repeat).sample(sides, len(sides)):
                side.repeat(corpus)
                if repeat < 0:
                    side.measured.forget()
        for side in sides:
            side.close()
        found += [side.measured for side in sides]
    return found


def print_table(found: Seq[Measured]) -> None:
    rows = []
    for measured in found:
        name = measured.name.replace("split", "colocated")
        beside = next(m for m in found if (m.name, m.batch) == (name, measured.batch))
        seconds, hidden = median(measured.seconds), measured.share_hidden
        same = [mine == other for mine, other in zip(measured.outputs, beside.outputs, strict=True)]
        rows.append(
            [
                f"{measured.name} ({measured.threads}{f'+{beside.threads - measured.threads}' * measured.is_split})",
                str(measured.batch),
                f"{measured.num_tokens / seconds:,.1f}",
                f"{median(b / m for b, m in zip(beside.seconds, measured.seconds, strict=True)):.2f}",
                f"{measured.num_tokens / measured.ideal_seconds:,.1f}" if measured.is_split else "",
                f"{measured.ideal_seconds / seconds:.2f}" if measured.is_split else "",
                "" if hidden is None else f"{hidden:.0%}",
                f"{median(measured.bytes_per_row):.1f}" if measured.is_split else "",
                f"{measured.num_accepted / max(measured.num_drafted, 1):.2f}",
                f"{sum(same) / len(same):.2f}",
            ]
        )
    show("draft and target apart", _HEADINGS, rows)
    print(_LEGEND)


def _crossing(stats: LinkStats) -> int:
    return stats.num_bytes_sent - stats.num_new_row_bytes + stats.num_bytes_received - stats.num_distribution_bytes


def _parse(arguments: Seq[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.split", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_flags(parser, "pair", "acceptance", "repeats", "new_tokens", "temperature")
    add_flags(parser, size="small", dtype="float32", batches=(4, 16), prompts=32)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of both placements together")
    parser.add_argument("--draft-threads", type=int, default=1, help="of the draft actor")
    parser.add_argument("--drafts", type=listed(str), default=("4", "adaptive"), help="draft lengths")
    parser.add_argument("--json", type=Path, help="write what was measured")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
