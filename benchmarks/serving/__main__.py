"""`python -m benchmarks.serving`: the endpoint against the engine alone, and under more than it can take.

python -m benchmarks.serving
python -m benchmarks.serving --size small --slots 8 --new-tokens 64 --repeats 3 --json out/serve.json
python -m benchmarks.serving --only throughput,latency --threads 2

All of it runs on this machine: a Ray Serve of its own with one replica, and in this process the engine alone and the
client. `--threads` is the number of threads of an engine, in the replica and alone; the other cores are for HTTP.
Throughput is measured on the same rows in turns, each time in a new order, and medians are reported.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import ray
import torch
from ray import serve
from tokenizers import Tokenizer, models
from transformers import AutoConfig, PreTrainedTokenizerFast

from actors.settings import GeneratorSettings, ModelSettings
from actors.workers.loading import load_codec, load_engine
from actors.workers.replica import ReplicaSettings
from benchmarks.decoder.corpus import Corpus, make_corpus
from benchmarks.decoder.options import BenchOptions
from benchmarks.decoder.table import plain_table
from benchmarks.hardware import describe_machine, versions
from benchmarks.pair_factory import SHAPES, cached_pair
from benchmarks.serving.client import Row, client_of
from benchmarks.serving.measures import (
    WAYS,
    Endpoint,
    Spread,
    Throughput,
    measure_latency,
    measure_leaving,
    measure_recovery,
    measure_refusals,
    measure_throughput,
)
from decoding.engine.options import EngineOptions
from endpoint.deployment import DeploymentSettings, deploy, make_application, start
from endpoint.edge.install import EdgeSettings
from endpoint.http.limits import Limits
from endpoint.service.service import ServiceSettings
from pipeline.logs import LogSettings

MEASURES = ("throughput", "latency", "refusals", "leaving", "recovery")
_LEGEND = (
    "x offline: over the engine alone with the same rows, threads and slots, in the same repeat; =offline: share of "
    "rows with its text; seconds are a client's, from when it sent the request; chunk: an event of a stream, which "
    "has the tokens of a round; a token: of the mean of a text after its first chunk; refusals: bursts of four times "
    "what slots and queue hold; left: from a client's leaving until the engine is idle; killed: from a SIGKILL of the "
    "only replica until a request is answered"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and return 0, or 2 if something cannot be measured."""
    given, load = _parse(arguments), os.getloadavg()
    try:
        options = _options(given)
        with tempfile.TemporaryDirectory() as folder:
            pair = options.pair or cached_pair(options.cache, options.size, options.acceptance, options.dtype)
            corpus = make_corpus(options, pair)
            found = asyncio.run(_measure(given, _settings(given, pair, corpus, Path(folder)), _rows(corpus, given)))
    except (ValueError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    finally:
        if ray.is_initialized():
            serve.shutdown()
            ray.shutdown()
    print_tables(found)
    if given.json is not None:
        facts = {"machine": describe_machine(torch.device("cpu")), "versions": versions(), "load": load}
        asked = {name: str(value) if isinstance(value, Path) else value for name, value in vars(given).items()}
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps({**facts, "options": asked, "results": _plain(found)}, indent=1) + "\n")
    return 0


async def _measure(given: argparse.Namespace, settings: GeneratorSettings, rows: Sequence[Row]) -> dict[str, Any]:
    torch.set_num_threads(given.threads)
    found: dict[str, Any] = {}
    port = _deploy(given, settings)
    async with client_of(f"http://127.0.0.1:{port}") as client:
        endpoint = Endpoint(client, given.slots, given.max_waiting)
        if "throughput" in given.only:
            _say("throughput")
            engine, codec = load_engine(settings), load_codec(settings)
            found["throughput"] = await measure_throughput(endpoint, engine, codec, rows, given.repeats)
        if "latency" in given.only:
            for at_once in sorted({1, given.slots}):
                _say(f"latency, {at_once} at a time")
                some = rows[: max(given.few, 2 * at_once)]
                found.setdefault("latency", {})[at_once] = await measure_latency(endpoint, some, at_once)
        if "refusals" in given.only:
            _say("refusals")
            found["refusals"] = await measure_refusals(endpoint, rows, given.bursts)
        if "leaving" in given.only:
            _say("leaving")
            found["leaving"] = await measure_leaving(endpoint, rows[0], given.leavers)
        if "recovery" in given.only:
            _say("recovery")
            exact = await client.ask(rows[0], is_streamed=False)
            found["recovery"] = await measure_recovery(endpoint, rows[0], exact.text, given.kills)
    return found


def print_tables(found: Mapping[str, Any]) -> None:
    """Print what was measured."""
    if throughput := found.get("throughput"):
        print(plain_table(("", "tokens/s", "x offline", "=offline"), _throughput_rows(throughput)), end="\n\n")
    spreads: list[tuple[str, Spread]] = []
    for at_once, latency in found.get("latency", {}).items():
        spreads += [(f"{what}, {at_once} at a time", spread) for what, spread in latency.items()]
    if refusals := found.get("refusals"):
        spreads.append((f"refusals, of {refusals['num_asked']} requests", refusals["seconds"]))
    spreads += [(f"left, {what}", spread) for what, spread in found.get("leaving", {}).items()]
    if recovery := found.get("recovery"):
        ends = ", ".join(f"{num} {end}" for end, num in recovery["streams"].items())
        spreads.append((f"killed (streams: {ends})", recovery["seconds"]))
    if spreads:
        rows = [[what, *_cells(spread)] for what, spread in spreads]
        print(plain_table(("milliseconds", "number", "median", "p99", "most"), rows), end="\n\n")
    print(_LEGEND)


def _throughput_rows(found: Throughput) -> list[list[str]]:
    return [
        [
            way,
            f"{found.tokens_per_second(way):,.1f}",
            f"{found.share_of_offline(way):.3f}",
            f"{found.share_equal[way]:.2f}",
        ]
        for way in WAYS
    ]


def _cells(spread: Spread) -> list[str]:
    return [f"{spread.num}", *(f"{1000 * value:,.1f}" for value in (spread.median, spread.p99, spread.most))]


def _deploy(given: argparse.Namespace, settings: GeneratorSettings) -> int:
    """Deploy the endpoint on a Ray and a Serve of this command's own, and return its port."""
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    ray.init(num_cpus=given.threads, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = int(listener.getsockname()[1])
    start("127.0.0.1", port, Limits())
    application = make_application(
        settings,
        ServiceSettings(model="bench"),
        EdgeSettings(keys=None),
        ReplicaSettings(max_waiting=given.max_waiting),
        DeploymentSettings(num_cpus=given.threads),
        LogSettings(level="error"),
    )
    _say("loading")
    deploy(application)
    return port


def _settings(given: argparse.Namespace, pair: Path, corpus: Corpus, folder: Path) -> GeneratorSettings:
    target = pair / "target"
    has_tokenizer = (target / "tokenizer.json").exists()
    tokenizer = None if has_tokenizer else _save_tokenizer(AutoConfig.from_pretrained(target).vocab_size, folder)
    is_fixed = given.draft_length != "adaptive"
    return GeneratorSettings(
        models=ModelSettings(
            target=str(target), draft=str(pair / "draft"), tokenizer=tokenizer, device="cpu", dtype=given.dtype
        ),
        engine=EngineOptions(
            num_slots=given.slots,
            max_model_len=corpus.max_model_len,
            draft_length="fixed" if is_fixed else "adaptive",
            num_speculative_tokens=int(given.draft_length) if is_fixed else 8,
        ),
    )


def _save_tokenizer(vocab_size: int, folder: Path) -> str:
    """Write a tokenizer for a made pair, in which every token is a word of its own, and return its folder."""
    vocabulary = {f"w{token}": token for token in range(vocab_size)}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=core, eos_token="w0").save_pretrained(folder)
    return str(folder)


def _rows(corpus: Corpus, given: argparse.Namespace) -> list[Row]:
    prompts = corpus.rows(given.rows)
    return [Row(tuple(prompt), seed, given.new_tokens, given.temperature) for seed, prompt in enumerate(prompts)]


def _options(given: argparse.Namespace) -> BenchOptions:
    unknown = set(given.only) - set(MEASURES)
    if unknown:
        raise ValueError(f"--only takes {', '.join(MEASURES)}; got {', '.join(sorted(unknown))}")
    for name in ("slots", "rows", "threads", "bursts", "leavers", "kills"):
        if getattr(given, name) < 1:
            raise ValueError(f"--{name} must be at least 1, got {getattr(given, name)}")
    pair = None if given.size else given.pair
    return BenchOptions(
        pair=pair,
        size=given.size or "small",
        acceptance=given.acceptance,
        dtype=given.dtype,
        batches=(given.rows,),
        repeats=given.repeats,
        prompts=given.rows,
        prompts_file=given.prompts_file if pair and (pair / "target" / "tokenizer.json").exists() else None,
        new_tokens=given.new_tokens,
        temperature=given.temperature,
    )


def _plain(value: Any) -> Any:
    """Return the value as JSON can hold it."""
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def _say(what: str) -> None:
    print(f"{what} ...", file=sys.stderr, flush=True)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    def names(text: str) -> tuple[str, ...]:
        return tuple(part for part in text.split(",") if part)

    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serving", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--pair", type=Path, default=Path("examples/tiny_pair"), metavar="FOLDER", help="with target/ and draft/")
    add("--prompts-file", type=Path, default=Path("examples/prompts.jsonl"), metavar="JSONL", help="where it has words")
    add("--size", choices=SHAPES, help="make a pair of this size instead, of random weights and prompts")
    add("--acceptance", type=float, default=0.8, metavar="RATE", help="greedy acceptance of a pair that is made")
    add("--dtype", choices=("float32", "bfloat16"), default="float32")
    add("--draft-length", default="4", metavar="K", help="a number, or adaptive (default %(default)s)")
    add("--threads", type=int, default=1, help="of an engine (default %(default)s)")
    add("--slots", type=int, default=16, help="rows in flight (default %(default)s)")
    add("--max-waiting", type=int, default=16, metavar="N", help="requests that may wait (default %(default)s)")
    add("--rows", type=int, default=96, metavar="N", help="rows of a repeat (default %(default)s)")
    add("--new-tokens", type=int, default=64, metavar="N", help="output tokens of every row (default %(default)s)")
    add("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    add("--repeats", type=int, default=5, help="passes each way (default %(default)s)")
    add("--few", type=int, default=16, metavar="N", help="least requests for a latency (default %(default)s)")
    add("--bursts", type=int, default=5, metavar="N", help="of four times what fits (default %(default)s)")
    add("--leavers", type=int, default=50, metavar="N", help="clients that leave (default %(default)s)")
    add("--kills", type=int, default=3, metavar="N", help="of the replica (default %(default)s)")
    add("--only", type=names, default=MEASURES, metavar="NAMES", help=f"of {', '.join(MEASURES)}")
    add("--json", type=Path, metavar="FILE", help="write what was measured")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
