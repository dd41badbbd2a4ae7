"""A run of the benchmark: the endpoint is deployed on a Ray of its own, measured, and what was found is printed."""

import argparse
import asyncio
import logging
import os
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
import torch
from ray import serve
from tokenizers import Tokenizer, models
from transformers import AutoConfig, PreTrainedTokenizerFast

from actors.engines.dray import load_engine
from actors.engines.loading import load_codec
from actors.settings import EngineSettings, GeneratorSettings, ModelSettings
from actors.workers.replica import ReplicaSettings
from benchmarks.decoder.configurations import engine_configuration
from benchmarks.decoder.corpus import Corpus, make_corpus
from benchmarks.decoder.options import BenchOptions, require_at_least_1
from benchmarks.harness import say, show, write_json
from benchmarks.roofline.hardware import describe_machine, versions
from benchmarks.serving import measures
from benchmarks.serving.client import Row, client_of
from endpoint.deployment import DeploymentSettings, deploy, make_application, start
from endpoint.edge.install import EdgeSettings
from endpoint.http.bodies import Limits
from endpoint.service.served_model import ServedModel
from endpoint.service.service import ServiceSettings
from pipeline.logs import LogSettings

_LEGEND = (
    "x offline: over the engine alone with the same rows, threads and slots, in the same repeat; =offline: share of "
    "rows with its text; seconds are a client's, from when it sent the request; chunk: an event of a stream, which "
    "has the tokens of a round; a token: of the mean of a text after its first chunk; refusals: bursts of four times "
    "what slots and queue hold"
)


def run(given: argparse.Namespace) -> int:
    """Measure what the command line asks for, and return 0, or 2 if something cannot be measured."""
    load = os.getloadavg()
    try:
        options = _options(given)
        with tempfile.TemporaryDirectory() as folder:
            pair = options.pair_folder()
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
        facts = {"machine": describe_machine(), "versions": versions(), "load": load}
        write_json(given.json, {**facts, "options": vars(given), "results": found})
    return 0


async def _measure(given: argparse.Namespace, settings: GeneratorSettings, rows: Sequence[Row]) -> dict[str, Any]:
    torch.set_num_threads(given.threads)
    found: dict[str, Any] = {}
    port = _deploy(given, settings)
    async with client_of(f"http://127.0.0.1:{port}") as client:
        endpoint = measures.Endpoint(client, given.slots + given.max_waiting)
        if "throughput" in given.only:
            say("throughput ...")
            engine, codec = load_engine(settings), load_codec(settings)
            found["throughput"] = await measures.throughput(endpoint, engine, codec, rows, given.repeats)
        if "latency" in given.only:
            for at_once in sorted({1, given.slots}):
                say(f"latency, {at_once} at a time ...")
                some = rows[: max(given.few, 2 * at_once)]
                found.setdefault("latency", {})[at_once] = await measures.latency(endpoint, some, at_once)
        if "refusals" in given.only:
            say("refusals ...")
            found["refusals"] = await measures.refusals(endpoint, rows, given.bursts)
    return found


def print_tables(found: Mapping[str, Any]) -> None:
    if throughput := found.get("throughput"):
        speeds = [(way, throughput.tokens_per_second(way), throughput.share_of_offline(way)) for way in measures.WAYS]
        rows = [(way, f"{t:,.1f}", f"{share:.3f}", f"{throughput.share_equal[way]:.2f}") for way, t, share in speeds]
        show("throughput", ("", "tokens/s", "x offline", "=offline"), rows)
    spreads: list[tuple[str, measures.Spread]] = []
    for at_once, latency in found.get("latency", {}).items():
        spreads += [(f"{what}, {at_once} at a time", spread) for what, spread in latency.items()]
    if refusals := found.get("refusals"):
        spreads.append((f"refusals, of {refusals['num_asked']} requests", refusals["seconds"]))
    if spreads:
        times = [(what, str(s.num), *(f"{1000 * t:,.1f}" for t in (s.median, s.p99, s.most))) for what, s in spreads]
        show("milliseconds", ("", "number", "median", "p99", "most"), times)
    print(_LEGEND)


def _deploy(given: argparse.Namespace, settings: GeneratorSettings) -> int:
    """Deploy the endpoint on a Ray and a Serve of this command's own, and return its port."""
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    ray.init(num_cpus=given.threads, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = int(listener.getsockname()[1])
    start("127.0.0.1", port, Limits())
    application = make_application(
        [ServedModel(settings=settings, service=ServiceSettings(model="bench"))],
        EdgeSettings(keys=None),
        ReplicaSettings(max_waiting=given.max_waiting),
        DeploymentSettings(num_cpus=given.threads, num_ingresses=1),
        LogSettings(level="error"),
    )
    say("loading ...")
    deploy(application)
    return port


def _settings(given: argparse.Namespace, pair: Path, corpus: Corpus, folder: Path) -> GeneratorSettings:
    target = pair / "target"
    has_tokenizer = (target / "tokenizer.json").exists()
    tokenizer = None if has_tokenizer else _save_tokenizer(AutoConfig.from_pretrained(target).vocab_size, folder)
    models = ModelSettings(
        target=str(target), draft=str(pair / "draft"), tokenizer=tokenizer, device="cpu", dtype=given.dtype
    )
    engine = engine_configuration(given.draft_length).engine_options(given.slots, corpus.max_model_len)
    return GeneratorSettings(models=models, engine=EngineSettings(**vars(engine)))


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
    require_at_least_1(given, "slots", "rows", "threads", "bursts")
    pair = None if given.size else given.pair
    has_words = pair and (pair / "target" / "tokenizer.json").exists()
    return BenchOptions.of(
        given,
        pair=pair,
        size=given.size or "small",
        batches=(given.rows,),
        prompts=given.rows,
        prompts_file=given.prompts_file if has_words else None,
        only=(),
    )
