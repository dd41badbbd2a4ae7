"""Rows a second that endpoints score: `python -m benchmarks.echo --servers old=http://HOST:PORT,new=http://HOST:PORT`.

It asks as lm-eval does: `/v1/completions` with `echo`, `logprobs: 1`, `max_tokens: 1` and token ids as prompts, some
texts in a request and some requests at once. The servers take turns in each repeat, so that other work on the machine
hits all of them alike; rows a second are medians, and times are medians of the ratios to the first server in the same
repeat. The kinds of rows are those of `python -m benchmarks.scoring`; a row is done when its texts are. The
log-probabilities of all servers must agree.

With `--job-rows N` a job of task "score" takes its turn, too, over N rows: the same ones, and more, each with a number
before it. Its rows a second are those of its steady state, and those of the whole command. They are compared with the
first server's for requests of each shape: texts a request x requests at once.
"""

import argparse
import asyncio
import time
from collections import defaultdict
from collections.abc import Sequence as Seq
from itertools import chain
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import aiohttp
from transformers import AutoTokenizer

from benchmarks.hardware import describe_machine
from benchmarks.harness import listed, say, show, write_json
from benchmarks.score_job import run_score_job
from benchmarks.scored_rows import kinds_of_rows, prompts_of

_HEADINGS = ("texts", "scored by", "compared for", "rows/s", "times the first", "least", "most")
_AGREEMENT = 1e-2  # of the sum over a text, as the tests of lm-eval ask
_JOB = ("job", "job, with its start")
_Texts = list[list[int]]
_Rates = dict[tuple[str, str], list[float]]  # rows a second of each repeat, by shape and who scores


def main(arguments: Seq[str] | None = None) -> None:
    """Measure, and print a table."""
    options = _parse(arguments)
    servers = dict(server.split("=", 1) for server in options.servers)
    prompts = prompts_of(options.prompts)[: options.rows]
    lines = [
        {"texts": kind, **line}
        for kind, rows in kinds_of_rows(prompts).items()
        for line in _lines(asyncio.run(_measure(servers, options, kind, rows)), next(iter(servers)))
    ]
    title = f"{describe_machine()['processor']}, {len(prompts)} rows by servers, {options.job_rows} by a job"
    show(title, _HEADINGS, [[_cell(value) for value in line.values()] for line in lines])
    if options.json:
        write_json(options.json, {"machine": describe_machine(), "lines": lines})


def _parse(arguments: Seq[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.echo", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--servers", type=listed(str), required=True, help="NAME=ADDRESS of each, the first to compare")
    parser.add_argument("--model", default="dray/tiny-pair", help="as the servers call it")
    parser.add_argument("--target", default="examples/tiny_pair/target", help="the same model's folder")
    parser.add_argument("--prompts", type=Path, default=Path("examples/prompts.jsonl"), help="lines as of the demo")
    parser.add_argument("--rows", type=int, default=300)
    parser.add_argument("--job-rows", type=int, default=0, help="0: no job")
    parser.add_argument("--shapes", type=listed(str), default=("1x4", "4x4", "16x4"), help="texts a request x at once")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    return parser.parse_args(arguments)


async def _measure(servers: dict[str, str], options: argparse.Namespace, kind: str, rows: Seq[Seq[str]]) -> _Rates:
    """Return the rows a second of all that score these rows."""
    tokenizer = AutoTokenizer.from_pretrained(options.target)
    texts = [list(tokenizer(text)["input_ids"]) for row in rows for text in row]
    rates: _Rates = defaultdict(list)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(600)) as session:
        for repeat in range(1 + options.repeats):  # the first one warms up
            for shape in options.shapes:
                sums = []
                for name in servers if repeat % 2 else reversed(servers):
                    started = time.perf_counter()
                    sums.append(await _score(session, servers[name], options.model, texts, shape))
                    if repeat:
                        rates[shape, name].append(len(rows) / (time.perf_counter() - started))
                for one, other in zip(sums[0], sums[-1], strict=True):
                    assert abs(one - other) < _AGREEMENT, "the servers do not agree"
            if repeat and options.job_rows:
                more = [
                    [f"{1 + number // len(rows)}. {text}" for text in rows[number % len(rows)]]
                    for number in range(options.job_rows)
                ]
                with TemporaryDirectory() as folder:
                    for name, rate in zip(_JOB, run_score_job(more, options.target, Path(folder)), strict=True):
                        rates["", name].append(rate)
            say(f"{kind}: repeat {repeat} of {options.repeats}")
    return rates


async def _score(session: aiohttp.ClientSession, address: str, model: str, texts: _Texts, shape: str) -> list[float]:
    """Return the log-probability of each text, of all its tokens but the first."""
    size, at_once = map(int, shape.split("x"))
    room = asyncio.Semaphore(at_once)

    async def ask(some: _Texts) -> list[float]:
        asked = {"model": model, "prompt": some, "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234}
        async with room, session.post(f"{address}/v1/completions", json={**asked, "echo": True}) as answer:
            body = await answer.json()
            assert answer.status == 200, body
        choices = zip(body["choices"], some, strict=True)
        return [sum(choice["logprobs"]["token_logprobs"][1 : len(text)]) for choice, text in choices]

    parts = [ask(texts[first : first + size]) for first in range(0, len(texts), size)]
    return list(chain.from_iterable(await asyncio.gather(*parts)))


def _lines(rates: _Rates, first: str) -> list[dict[str, str | float]]:
    """Return a line for each that scores, with the times of the first server's rows a second for requests of a shape.

    A server's are compared in its own shape, and a job's in each.
    """
    shapes = [shape for shape, name in rates if name == first]
    lines: list[dict[str, str | float]] = []
    for (own, name), found in rates.items():
        for shape in [own] if own else shapes:
            times = [rate / one for rate, one in zip(found, rates[shape, first], strict=True)]
            what: dict[str, str | float] = {"by": name, "shape": shape, "rows_per_second": median(found)}
            lines.append({**what, "times": median(times), "least_times": min(times), "most_times": max(times)})
    return lines


def _cell(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:,.2f}"


if __name__ == "__main__":
    main()
