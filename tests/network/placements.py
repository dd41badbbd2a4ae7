"""`python -m tests.network.placements`: placements over a wire with a round trip, against the same without. Needs root.

python -m tests.network.placements --ways split:4,2-stages:4 --delays 0,10,50 --batches 256

A way is a placement, a draft length and, if not as many as pay, a number of lanes (split:4:2). The engine is on one
host, and the draft actor on another one, whose line is delayed; of stages it is the line of the last one. Every repeat
runs all ways at all delays in an order of its own. The costs are measured anew before each, as where an engine is
loaded. "times without" is a ratio within repeats.
"""

import ctypes
import os
import sys
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import ray

from actors.settings import EngineSettings, GeneratorSettings, ModelSettings
from benchmarks.decoder.configurations import engine_configuration
from benchmarks.decoder.corpus import Corpus, make_corpus
from benchmarks.decoder.options import BenchOptions, add_flags
from benchmarks.harness import interleaved, listed, parser_of, say, show_lines, whole
from benchmarks.placements import PlacedPass, Side, placed
from benchmarks.roofline.hardware import record
from tests.network.cluster import NetworkCluster, running_network_cluster
from tests.network.hosts import Host, why_not

_NEW_NETWORK = 0x40000000  # CLONE_NEWNET
COLUMNS = (
    ("way", "way", ""),
    ("batch", "batch", ""),
    ("round trip, ms", "trip_ms", ",.0f"),
    ("lanes", "num_lanes", ""),
    ("tokens/s", "tokens_per_second", ",.0f"),
    ("times without", "times_without", ".2f"),
    ("waited for drafts", "share_waited", ".0%"),
    ("= without", "share_equal", ".2f"),
)


def main(arguments: Seq[str] | None = None) -> int:
    """Measure, and return 0, or 2 if this machine can have no such hosts."""
    parser = parser_of("placements", __doc__)
    add_flags(parser, "pair", "acceptance", "repeats", "new_tokens", "temperature")
    add_flags(parser, size="nested-tiny", dtype="float32", batches=(256,), prompts=1024)
    parser.add_argument("--ways", type=listed(str), default=("split:4", "split:adaptive", "2-stages:4"))
    parser.add_argument("--delays", type=listed(float), default=(0.0, 10.0, 50.0), help="round trips in milliseconds")
    given = parser.parse_args(arguments)
    if problem := why_not():
        say(f"error: {problem}")
        return 2
    options = BenchOptions.of(given)
    with running_network_cluster() as cluster, driver_on(cluster):
        lines = [line for batch in options.batches for line in measure(cluster, options, batch, given)]
    show_lines("placements over a wire", COLUMNS, lines)
    record(given.json, options=options, lines=lines)
    return 0


@contextmanager
def driver_on(cluster: NetworkCluster) -> Iterator[None]:
    """Let this process be a driver on the head, as long as the block runs."""
    os.environ.update(cluster.environment)
    own = Path("/proc/self/ns/net").open()  # noqa: SIM115 - closed below
    with own, Path(f"/var/run/netns/{cluster.head.name}").open() as there:
        _enter(there.fileno())
        try:
            ray.init(cluster.address, log_to_driver=False)
            yield
        finally:
            ray.shutdown()
            _enter(own.fileno())  # the end of the cluster kills what is on its hosts


def _enter(namespace: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(namespace, _NEW_NETWORK):
        raise OSError(ctypes.get_errno(), "the network of a host cannot be entered")


def measure(cluster: NetworkCluster, options: BenchOptions, batch: int, given: Any) -> Iterator[dict[str, Any]]:
    """Yield a line for each way and delay."""
    pair = options.pair_folder().absolute()
    corpus = make_corpus(options, pair)
    models = ModelSettings(target=str(pair / "target"), draft=str(pair / "draft"), device="cpu", dtype=options.dtype)
    with ExitStack() as stack:
        turns = {}
        for way in given.ways:
            name, length, *lanes = way.split(":")
            engine = engine_configuration(length).engine_options(batch, corpus.max_model_len)
            settings, threads = placed(
                GeneratorSettings(models=models, engine=EngineSettings(**vars(engine))),
                name,
                threads=2,
                draft_threads=1,
            )
            settings = replace(
                settings,
                engine=replace(settings.engine, num_lanes=int(lanes[0]) if lanes else None),
                stages=replace(settings.stages, strategy="STRICT_SPREAD"),
                drafts=replace(settings.drafts, timeout_s=3.0),  # with longer ones an engine makes fewer lanes
            )
            say(f"loading {way} ...")
            side = stack.enter_context(closing(Side(way, settings, threads)))
            delayed = cluster.workers if settings.has_draft_actors else cluster.workers[-1:]
            for trip_ms in given.delays:
                turns[way, trip_ms] = whole(partial(_turn, cluster, side, corpus, options, batch, delayed, trip_ms))
        table = interleaved(turns, options.repeats, str(batch))
    for way, trip_ms in turns:
        passes, without = table.passes[way, trip_ms], table.passes[way, given.delays[0]]
        yield {
            "way": way,
            "batch": batch,
            "trip_ms": trip_ms,
            "num_lanes": passes[-1].num_lanes,
            "tokens_per_second": median(table.speeds((way, trip_ms))),
            "times_without": median(table.ratios((way, trip_ms), (way, given.delays[0]))),
            "share_waited": median(each.wait_seconds / each.seconds for each in passes),
            "share_equal": sum(map(list.__eq__, passes[-1].outputs, without[-1].outputs)) / len(without[-1].outputs),
        }


def _turn(
    cluster: NetworkCluster,
    side: Side,
    corpus: Corpus,
    options: BenchOptions,
    batch: int,
    delayed: Seq[Host],
    trip_ms: float,
    number: int,
) -> PlacedPass:
    for host in delayed:
        cluster.network.shape(host, delay_s=trip_ms / 2e3)
    found = side.repeat(corpus, options.num_rows(batch), batch, number)
    for host in delayed:
        cluster.network.shape(host, delay_s=0.0)
    say(f"{trip_ms:g} ms: {found.done / found.seconds:,.0f} tokens/s in {found.num_lanes} lanes")
    return found


if __name__ == "__main__":
    sys.exit(main())
