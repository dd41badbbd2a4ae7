"""`python -m benchmarks.gpu_check.kernels --json FILE`: our products and attention alone, with every tile.

Products have the weights of an 8B model and are compared with the library's; attention reads the keys and values of
its rows once, which is compared with the memory's bandwidth. Each tile's numbers are compared, bit for bit, with those
of the present one: of a product it is the one that the clock chooses when a model is loaded.

Shapes: N lines, I inputs, O outputs, B rows, T tokens of each, Q query heads, H KV heads, D head size.
"""

import argparse
import itertools
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from triton.runtime.errors import OutOfResources

from benchmarks.harness import write_json
from decoding.gpu import attention, linear
from decoding.gpu.tile_clock import fastest, gpu_clock
from decoding.gpu.tiles import LINES as TIMED
from decoding.gpu.tiles import Tile, Weight, served_with

_NUM_REPLAYS = 9
_MANY_BYTES = 300 << 20  # more than a cache holds
_CONTEXT = 1088  # positions of each row
_COMPILERS = 12  # processes


class Product(NamedTuple):
    """A product of an 8B model (Qwen3's sizes)."""

    name: str
    inputs: int
    outputs: int
    is_gated: bool = False
    is_added: bool = False

    @property
    def weight(self) -> Weight:
        """What its tiles follow from."""
        return Weight(self.outputs, self.inputs, torch.bfloat16, 2 if self.is_gated else 1)


PRODUCTS = (
    Product("qkv", 4096, 6144),
    Product("o", 4096, 4096, is_added=True),
    Product("gate and up", 4096, 12288, is_gated=True),
    Product("down", 12288, 4096, is_added=True),
    Product("head", 4096, 151936),
)
LINES = (16, 64, 128, 192, 256, 512, 2048)
# Rows, tokens of each: plain rounds, rounds with drafts, a prompt.
READS = ((16, 1), (64, 1), (128, 1), (16, 5), (64, 3), (128, 3), (2, 1024))

# Lines, keys, warps, stages, and whether one program has all chunks of a row.
TILINGS = tuple(
    tiling
    for tiling in itertools.product((16, 32), (32, 64, 128), (4, 8), (2, 3, 4), (1, 0))
    if tiling[1] * 512 * tiling[3] <= 220 << 10 and (tiling[0] >= 32 or tiling[2] == 4)
)
_DOES_NOT_FIT = (OutOfResources, RuntimeError, ValueError)  # no room for a tile, or no way to lay it out


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure all, print a line of each, and write the figures; return 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_check.kernels")
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    given = parser.parse_args(arguments)
    every = [(tile, product) for product in PRODUCTS for number in TIMED for tile in product.weight.tiles(number)]
    jobs = [*((each, None) for each in dict.fromkeys(every)), *((None, tiling) for tiling in TILINGS)]
    with ProcessPoolExecutor(_COMPILERS, mp_context=get_context("spawn")) as processes:
        list(processes.map(_compile, jobs))
    print("compiled", flush=True)
    facts: dict[str, Any] = {"products": [], "attention": []}
    for product, num_lines in itertools.product(PRODUCTS, LINES):
        if product.name != "head" or num_lines <= 512:
            facts["products"].append(measure_product(product, num_lines))
            write_json(given.json, facts)
    for num_rows, num_tokens in READS:
        facts["attention"].append(measure_attention(num_rows, num_tokens))
        write_json(given.json, facts)
    return 0


def _compile(job: tuple[tuple[Tile, Product] | None, tuple[int, ...] | None]) -> None:
    """Compile a kernel with some tile, for the processes that come after."""
    of_product, tiling = job
    with suppress(*_DOES_NOT_FIT):
        if of_product is not None:
            tile, product = of_product
            _product_with(tile, product, _operands(product, tile.lines, 1))
        if tiling is not None:
            _attend_with(tiling, _attention_operands(2, 1, 1))


def measure_product(product: Product, num_lines: int) -> dict[str, Any]:
    """Return the microseconds of the library, of the tile that the clock chooses, and of the others, fastest first."""
    weight_bytes = 2 * product.inputs * product.outputs * (2 if product.is_gated else 1)
    operands = _operands(product, num_lines, max(2, _MANY_BYTES // weight_bytes))
    layers = [(_Layer(weight), _Layer(*gate) if gate else None) for _, weight, *gate, _ in operands]
    present = fastest(product.weight, layers, served_with(num_lines), gpu_clock) or product.weight.first_tile(num_lines)
    expected = _product_with(present, product, operands)[0].clone()
    found: list[dict[str, Any]] = []
    for tile in product.weight.tiles(num_lines):
        try:
            same = torch.equal(_product_with(tile, product, operands)[0], expected)
            took = _microseconds(partial(_product_with, tile, product, operands), len(operands))
        except _DOES_NOT_FIT as error:  # a tile that does not fit this GPU
            found.append({"tile": list(vars(tile).values()), "error": repr(error)[:100]})
            continue
        found.append({"tile": list(vars(tile).values()), "us": took, "is_same": same})
    found.sort(key=lambda each: each.get("us", 1e9))
    facts = {
        "product": product.name,
        "lines": num_lines,
        "library_us": _microseconds(lambda: _library(product, operands), len(operands)),
        "present": list(vars(present).values()),
        "present_us": _microseconds(lambda: _product_with(present, product, operands), len(operands)),
        "gb": weight_bytes / 1e9,
        "tiles": found,
    }
    best = found[0]
    differ = [each["tile"] for each in found if not each.get("is_same", True)]
    print(
        f"{product.name}@{num_lines}: library {facts['library_us']:.0f} us, the clock chose {facts['present']}, "
        f"{facts['present_us']:.0f} us, best {best['us']:.0f} {best['tile']}; other bits: {differ}",
        flush=True,
    )
    return facts


class _Layer(NamedTuple):
    """A layer as the clock reads it."""

    weight: torch.Tensor


def _operands(product: Product, num_lines: int, copies: int) -> list[tuple[torch.Tensor, ...]]:
    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

    many = 2 if product.is_gated else 1
    return [
        (
            random(num_lines, product.inputs),
            *(random(product.outputs, product.inputs) * product.inputs**-0.5 for _ in range(many)),
            random(num_lines, product.outputs),
        )
        for _ in range(copies)
    ]


def _product_with(tile: Tile, product: Product, operands: list[tuple[torch.Tensor, ...]]) -> list[torch.Tensor]:
    tiles = {(product.weight.num_weights, lines): tile for lines in TIMED}
    return [
        linear.multiply(x, weight, None, added if product.is_added else None, (gate[0], None) if gate else None, tiles)
        for x, weight, *gate, added in operands
    ]


def _library(product: Product, operands: list[tuple[torch.Tensor, ...]]) -> None:
    for x, weight, *gate, added in operands:
        out = torch.nn.functional.linear(x, weight)
        if gate:
            torch.nn.functional.silu(torch.nn.functional.linear(x, gate[0])).mul_(out)
        elif product.is_added:
            out.add_(added)


def measure_attention(num_rows: int, num_tokens: int) -> dict[str, Any]:
    """Return the microseconds of attention with the present tile and with others, fastest first."""
    num_bytes = 2 * 2 * num_rows * _CONTEXT * 8 * 128
    operands = _attention_operands(num_rows, num_tokens, max(2, _MANY_BYTES // num_bytes))
    times = len(operands[1])
    expected = _attend_with(None, operands)[0].clone()
    found: list[dict[str, Any]] = []
    for tiling in TILINGS:
        if num_tokens > 100 and not tiling[-1]:
            continue
        try:
            same = torch.equal(_attend_with(tiling, operands)[0], expected)
            took = _microseconds(partial(_attend_with, tiling, operands), times)
        except _DOES_NOT_FIT as error:
            found.append({"tile": list(tiling), "error": repr(error)[:100]})
            continue
        found.append({"tile": list(tiling), "us": took, "is_same": same})
    found.sort(key=lambda each: each.get("us", 1e9))
    present_us = _microseconds(lambda: _attend_with(None, operands), times)
    facts = {"rows": num_rows, "tokens": num_tokens, "gb": num_bytes / 1e9, "present_us": present_us, "tiles": found}
    names = [f"{each['us']:.0f} {each['tile']} {'=' if each['is_same'] else '!'}" for each in found[:4]]
    print(
        f"attention {num_rows} x {num_tokens}: {present_us:.0f} us, {num_bytes / present_us / 1e3:.0f} GB/s; "
        f"best {', '.join(names)}",
        flush=True,
    )
    return facts


def _attention_operands(num_rows: int, num_tokens: int, copies: int) -> "tuple[attention.TokenRows, list[Any]]":
    rows = attention.TokenRows(
        torch.arange(num_rows + 1, device="cuda") * num_tokens,
        torch.arange(num_rows, device="cuda").repeat_interleave(num_tokens),
        torch.arange(_CONTEXT - num_tokens, _CONTEXT, device="cuda").repeat(num_rows),
        num_tokens,
        _CONTEXT,
    )

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

    def stored() -> torch.Tensor:
        return random(num_rows, _CONTEXT + 1, 8, 128).transpose(1, 2)

    return rows, [(random(num_rows * num_tokens, 32, 128), stored(), stored()) for _ in range(copies)]


def _attend_with(
    tiling: tuple[int, ...] | None, operands: "tuple[attention.TokenRows, list[Any]]"
) -> list[torch.Tensor]:
    rows, many = operands
    rule = attention.Rule(128**-0.5)
    if tiling is None:
        return [attention.attend(query, keys, values, rows, rule) for query, keys, values in many]
    *sizes, is_whole = tiling
    tile = attention._Tile(128, *sizes)
    with (
        patch.object(attention._Tile, "of", lambda *_: tile),
        patch.object(attention, "_ENOUGH_PROGRAMS", 0 if is_whole else 1 << 30),
    ):
        return [attention.attend(query, keys, values, rows, rule) for query, keys, values in many]


def _microseconds(run: Callable[[], object], times: int) -> float:
    """Return the median time of one of the `times` launches that `run` makes, without the host's."""
    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    took = []
    for _ in range(_NUM_REPLAYS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        took.append(begin.elapsed_time(end) * 1e3 / times)
    return float(median(took))


if __name__ == "__main__":
    sys.exit(main())
