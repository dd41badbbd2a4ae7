"""`python -m benchmarks.placements`: a pair that is spread over processes against one process, on the same cores.

python -m benchmarks.placements --size small --acceptance 0.8 --batches 4,16
python -m benchmarks.placements --pair examples/tiny_pair --placements colocated,2-stages,2-ranks --temperature 0.8

Colocated, one process has all the threads (`--threads`). Split, the target has all but those of the draft actor
(`--draft-threads`). Stages, which hold layers, and ranks, which share layers, divide them. On one machine the ideal is
the target in one process: what is missing is what messages take, and what the cores lose to each other. Every repeat
runs all configurations in an order of its own, and medians are reported.
"""

import re
import sys
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

import ray
import torch

from actors.drafts.link import LinkStats
from actors.drafts.remote_drafter import DraftLinks
from actors.drafts.roster import start_roster
from actors.engines.dray import load_engine
from actors.placement import DraftSettings, StageSettings
from actors.settings import EngineSettings, GeneratorSettings, ModelSettings
from actors.stages.target import ShardedModel
from benchmarks.decoder.configurations import engine_configuration
from benchmarks.decoder.corpus import Corpus, generate, make_corpus
from benchmarks.decoder.options import BenchOptions, add_flags
from benchmarks.harness import Table, interleaved, listed, parser_of, say, seconds_of, show_lines, whole
from benchmarks.roofline.hardware import record
from benchmarks.scale.runs import start_own_ray
from decoding.turns import Pass
from pipeline.logs import LogSettings

_PLACEMENT = re.compile(r"colocated|split|(\d+)-(stages|ranks)")
COLUMNS = (
    ("placement", "placement", ""),
    ("draft", "draft", ""),
    ("batch", "batch", ""),
    ("lanes", "num_lanes", ""),
    ("tokens/s", "tokens_per_second", ",.1f"),
    ("times the first", "times_the_first", ".2f"),
    ("efficiency", "efficiency", ".2f"),
    ("hidden", "share_hidden", ".0%"),
    ("bytes/row", "bytes_per_row", ".1f"),
    ("accepted", "acceptance_rate", ".2f"),
    ("= the first", "share_equal", ".2f"),
)
_LEGEND = (
    "tokens/s: output tokens over the time of the whole corpus; efficiency: of the same run if it took no longer than "
    "the busier of target and draft actor; hidden: share of the draft actor's time that no round waited for; "
    "bytes/row: there and back for a row and round, tokens of new rows not counted; = the first: share of rows "
    "with its tokens"
)


@dataclass(frozen=True, kw_only=True)
class PlacedPass(Pass):
    """One repeat of one placement; what is done are tokens."""

    wait_seconds: float  # of rounds, for drafts
    draft_seconds: float  # that the draft actor was busy; 0 without one
    bytes_per_row: float
    outputs: list[list[int]]
    acceptance_rate: float
    num_lanes: int


class Side:
    """A placement: an engine, and how to count what it did. Closing it ends the other processes."""

    def __init__(self, name: str, settings: GeneratorSettings, threads: int) -> None:
        """Load the engine; `threads` are those of this process when it generates."""
        self._name, self._threads = name, threads
        torch.set_num_threads(threads)
        self._links = None
        if settings.placement == "split":
            self._links = DraftLinks(settings, start_roster(settings, name, LogSettings(level="error"), 1))
        self.engine = load_engine(settings, self._links)
        self._check_drafts()

    def close(self) -> None:
        if self._links is not None:
            self._links.close()
        if isinstance(self.engine.target, ShardedModel):
            self.engine.target.pipeline.close()

    def repeat(self, corpus: Corpus, num_rows: int, batch: int, number: int = 0) -> PlacedPass:
        """Generate the corpus once more, by an engine that has learned nothing."""
        torch.set_num_threads(self._threads)
        self.engine.resize(batch)
        before = self._stats()
        sequences = corpus.sequences(num_rows)
        seconds = seconds_of(partial(generate, self.engine, sequences))
        after = self._stats()
        self._check_drafts()
        num_crossed = after.num_rows - before.num_rows
        num_drafted = sum(sequence.num_draft_tokens for sequence in sequences)
        return PlacedPass(
            seconds=seconds,
            done=sum(len(sequence.output_token_ids) for sequence in sequences),
            wait_seconds=after.wait_seconds - before.wait_seconds,
            draft_seconds=after.draft_seconds - before.draft_seconds,
            bytes_per_row=(_crossing(after) - _crossing(before)) / num_crossed if num_crossed else 0.0,
            outputs=[sequence.output_token_ids for sequence in sequences],
            acceptance_rate=sum(sequence.num_accepted_tokens for sequence in sequences) / max(num_drafted, 1),
            num_lanes=len(self.engine.lanes),
        )

    def _check_drafts(self) -> None:
        """Raise RuntimeError without a draft actor: what is measured then is no split."""
        if self._links is not None and not self._links.are_up:
            self._links.close()
            raise RuntimeError(f"{self._name}: its draft actor is out of reach")

    def _stats(self) -> LinkStats:
        """Return what travelled so far, and how long the draft actor was busy with it."""
        return LinkStats() if self._links is None else self._links.stats


def main(arguments: Seq[str] | None = None) -> int:
    """Measure, and return 0, or 2 if something cannot be measured."""
    parser = parser_of("placements", __doc__)
    add_flags(parser, "pair", "acceptance", "repeats", "new_tokens", "temperature")
    add_flags(parser, size="small", dtype="float32", batches=(4, 16), prompts=32)
    flag = parser.add_argument
    flag("--placements", type=listed(str), default=("colocated", "split", "2-stages"), help="also 3-stages, 2-ranks")
    flag("--threads", type=int, default=torch.get_num_threads(), help="of all processes together")
    flag("--draft-threads", type=int, default=1, help="of the draft actor")
    flag("--drafts", type=listed(str), default=("4", "adaptive"), help="draft lengths")
    given = parser.parse_args(arguments)
    try:
        options = BenchOptions.of(given)
        if given.threads <= given.draft_threads:
            raise ValueError(f"--threads {given.threads} must be more than --draft-threads {given.draft_threads}")
        if unknown := [name for name in given.placements if not _PLACEMENT.fullmatch(name)]:
            raise ValueError(f"--placements takes colocated, split, N-stages and N-ranks, got {unknown[0]}")
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    start_own_ray(num_cpus=16)
    try:
        lines = list(measure(options, given.placements, given.threads, given.draft_threads, given.drafts))
    finally:
        ray.shutdown()
    show_lines("placements", COLUMNS, lines)
    print(_LEGEND)
    record(given.json, options=options, lines=lines)
    return 0


def measure(
    options: BenchOptions, placements: Seq[str], threads: int, draft_threads: int, lengths: Seq[str]
) -> Iterator[dict[str, Any]]:
    """Yield a line for each placement, at every batch and draft length."""
    pair = options.pair_folder()
    corpus = make_corpus(options, pair)
    models = ModelSettings(target=str(pair / "target"), draft=str(pair / "draft"), device="cpu", dtype=options.dtype)
    for batch in options.batches:
        for length in lengths:
            engine = engine_configuration(length).engine_options(batch, corpus.max_model_len)
            settings = GeneratorSettings(models=models, engine=EngineSettings(**vars(engine)))
            with ExitStack() as stack:
                ways = {}
                for name in placements:
                    say(f"loading {name} {length}@{batch} ...")
                    side = Side(f"{name} {length}", *placed(settings, name, threads, draft_threads))
                    stack.enter_context(closing(side))
                    ways[name] = whole(partial(side.repeat, corpus, options.num_rows(batch), batch))
                table = interleaved(ways, options.repeats, f"{length}@{batch}")
            for name in placements:
                yield {"placement": name, "draft": length, "batch": batch, **_figures(table, name, placements[0])}


def placed(settings: GeneratorSettings, name: str, threads: int, draft_threads: int) -> tuple[GeneratorSettings, int]:
    """Return the settings of a placement, and the threads of this process."""
    found = _PLACEMENT.fullmatch(name)
    if name == "split":
        drafts = DraftSettings(num_cpus=draft_threads, timeout_s=60.0)
        return replace(settings, placement="split", drafts=drafts), threads - draft_threads
    if found and found[1]:
        field = {"stages": "count", "ranks": "tensor_parallel"}[found[2]]
        stages = StageSettings(num_cpus=max(1, threads // int(found[1])), **{field: int(found[1])})  # type: ignore[arg-type]
        return replace(settings, stages=stages), 1
    return settings, threads


def _figures(table: Table[PlacedPass], name: str, first: str) -> dict[str, Any]:
    passes, is_split = table.passes[name], table.passes[name][0].draft_seconds > 0
    last, beside = passes[-1], table.passes[first][-1]
    ideals = [max(each.seconds - each.wait_seconds, each.draft_seconds) / each.seconds for each in passes]
    hidden = [1 - min(each.wait_seconds / each.draft_seconds, 1.0) for each in passes if each.draft_seconds]
    return {
        "num_lanes": last.num_lanes,
        "tokens_per_second": table.speed(name),
        "times_the_first": median(table.ratios(name, first)),
        "efficiency": median(ideals) if is_split else None,
        "share_hidden": median(hidden) if hidden else None,
        "bytes_per_row": median(each.bytes_per_row for each in passes) if is_split else None,
        "acceptance_rate": last.acceptance_rate,
        "share_equal": sum(map(list.__eq__, last.outputs, beside.outputs)) / len(last.outputs),
    }


def _crossing(stats: LinkStats) -> int:
    return stats.num_bytes_sent - stats.num_new_row_bytes + stats.num_bytes_received - stats.num_distribution_bytes


if __name__ == "__main__":
    sys.exit(main())
