"""Rows a second that endpoints score: `python -m benchmarks.echo --servers old=http://HOST:PORT,new=http://HOST:PORT`.

It asks as lm-eval does: `/v1/completions` with `echo`, `logprobs: 1`, `max_tokens: 1` and token ids as prompts, some
texts in a request and some requests at a time. The servers take turns in each repeat, so that other work on the machine
hits all of them alike; rows a second are medians, and times are medians of the ratios to the first server in the same
repeat. The kinds of rows are those of `python -m benchmarks.scoring`; a row is done when its texts are. The
log-probabilities of all servers must agree.
"""

import argparse
import asyncio
import time
from collections.abc import Sequence as Seq
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
from transformers import AutoTokenizer

from benchmarks.hardware import describe_machine
from benchmarks.harness import listed, say, show, write_json
from benchmarks.scored_rows import kinds_of_rows, prompts_of

_HEADINGS = ("texts", "texts a request", "requests at once", "server", "rows/s", "times the first", "least", "most")
_AGREEMENT = 1e-2  # of the sum over a text, as the tests of lm-eval ask
_Texts = list[list[int]]


def main(arguments: Seq[str] | None = None) -> None:
    """Measure, and print a table."""
    options = _parse(arguments)
    servers = dict(server.split("=", 1) for server in options.servers)
    tokenizer = AutoTokenizer.from_pretrained(options.target)
    prompts = prompts_of(options.prompts)[: options.rows]
    lines: list[dict[str, Any]] = []
    for name, rows in kinds_of_rows(prompts).items():
        texts = [list(tokenizer(text)["input_ids"]) for row in rows for text in row]
        for shape in options.shapes:
            size, at_once = map(int, shape.split("x"))
            lines += asyncio.run(_measure(servers, options, name, texts, len(rows), size, at_once))
    title = f"{describe_machine()['processor']}, {options.rows} rows"
    show(title, _HEADINGS, [_cells(line) for line in lines])
    if options.json:
        write_json(options.json, {"machine": describe_machine(), "lines": lines})


def _parse(arguments: Seq[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.echo", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--servers", type=listed(str), required=True, help="NAME=ADDRESS of each, the first to compare")
    parser.add_argument("--model", default="dray/tiny-pair", help="as the servers call it")
    parser.add_argument("--target", default="examples/tiny_pair/target", help="the model's tokenizer")
    parser.add_argument("--prompts", type=Path, default=Path("examples/prompts.jsonl"), help="lines as of the demo")
    parser.add_argument("--rows", type=int, default=300)
    parser.add_argument("--shapes", type=listed(str), default=("1x4", "4x4", "16x4"), help="texts a request x at once")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    return parser.parse_args(arguments)


async def _measure(
    servers: dict[str, str],
    options: argparse.Namespace,
    kind: str,
    texts: _Texts,
    num_rows: int,
    size: int,
    at_once: int,
) -> list[dict[str, Any]]:
    """Return the figures of each server for these texts, so many a request, and so many requests at once."""
    seconds: dict[str, list[float]] = {name: [] for name in servers}
    sums: dict[str, list[float]] = {}
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(600)) as session:
        for repeat in range(1 + options.repeats):  # the first one warms up
            for name in servers if repeat % 2 else reversed(servers):
                started = time.perf_counter()
                sums[name] = await _score(session, servers[name], options.model, texts, size, at_once)
                seconds[name].append(time.perf_counter() - started)
            say(f"{kind}, {size} x {at_once}: repeat {repeat} of {options.repeats}")
    first = next(iter(servers))
    for found in sums.values():
        assert max(abs(a - b) for a, b in zip(found, sums[first], strict=True)) < _AGREEMENT, "the servers do not agree"
    lines = []
    for name, measured in seconds.items():
        times = [one / own for one, own in zip(seconds[first][1:], measured[1:], strict=True)]
        lines.append(
            {
                "texts": kind,
                "texts_a_request": size,
                "requests_at_once": at_once,
                "server": name,
                "rows_per_second": num_rows / median(measured[1:]),
                "times": median(times),
                "least_times": min(times),
                "most_times": max(times),
            }
        )
    return lines


async def _score(
    session: aiohttp.ClientSession, address: str, model: str, texts: _Texts, size: int, at_once: int
) -> list[float]:
    """Return the log-probability of each text, of all its tokens but the first."""
    room = asyncio.Semaphore(at_once)

    async def ask(some: _Texts) -> list[float]:
        asked = {"temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}
        async with (
            room,
            session.post(f"{address}/v1/completions", json={"model": model, "prompt": some, **asked}) as said,
        ):
            body = await said.json()
            assert said.status == 200, body
        return [
            sum(choice["logprobs"]["token_logprobs"][1 : len(text)])
            for choice, text in zip(body["choices"], some, strict=True)
        ]

    return list(
        chain.from_iterable(
            await asyncio.gather(*(ask(texts[first : first + size]) for first in range(0, len(texts), size)))
        )
    )


def _cells(line: dict[str, Any]) -> list[str]:
    return [
        line["texts"],
        str(line["texts_a_request"]),
        str(line["requests_at_once"]),
        line["server"],
        f"{line['rows_per_second']:,.1f}",
        *(f"{line[name]:.2f}" for name in ("times", "least_times", "most_times")),
    ]


if __name__ == "__main__":
    main()
