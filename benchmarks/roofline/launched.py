"""Launched: the time of a round as our kernels do it on a GPU of Hopper's kind, from what they launch.

Counted, and held to what is launched and compiled by tests: the tiles of a product, the programs that they make, how
many of these a multiprocessor runs at once, the bytes that they read, and the kernels of a layer.

The tile of a product is the one for which this counts the least of those among which a clock chooses on a GPU
(`decoding/gpu/tile_clock.py`). The clock takes the best there is, and that may be slower than is counted: on an H100
the library took 174 us for the products of a layer of 8b at 128 lines, for which 132 are counted. Guessed, each once:

- A second level of cache that gives 7 TB/s. A program reads its own lines and weights from there, so a product of small
  tiles reads a weight several times.
- A product takes as long as reading its weight from memory (at 90 % of the bandwidth), or as its arithmetic (70 %) or
  its reads from the cache (both divided by the share of places for programs that are filled), whichever is longest.
- Keys and values come at 70 % of the bandwidth.
- 3 us for each kernel, in which the GPU begins and ends it. The host's work is hidden.

A round with an EAGLE-3 head is the target's forward over K + 1 tokens of each row, and K steps of the head, of which
the first one reads K + 1 pairs of each row, and each later one a pair. The head's products are the library's, and take
as long as reading its weights or as their arithmetic.

Beside it stands what vLLM would take, guessed from what others have published: 85 % of the ideal (`ideal.py`), and 0.65
ms of a round.
"""

import importlib.util
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.pair_factory import Shape
from benchmarks.roofline.gpus import Gpu
from benchmarks.roofline.ideal import BANDWIDTH_SHARE, COMPUTE_SHARE, forward_seconds
from benchmarks.roofline.model_size import NUM_FEATURES, Forward, ModelSize
from benchmarks.roofline.multiprocessor import MULTIPROCESSORS
from decoding.fused.recordings import LAYER_KERNELS

CACHE_BANDWIDTH = 7e12
KEYS_SHARE = 0.7
KERNEL_SECONDS = 3e-6
OTHER_KERNELS = 3  # behind the last layer: the parts that no norm adds, the last norm, and the head
PEER_SHARE, PEER_SECONDS = 0.85, 0.65e-3
# Of a round with a head, beside the target's: the first step with its picks and what it reads of its ring, each later
# step, and what is left for the next round.
FIRST_STEP_KERNELS, NEXT_STEP_KERNELS, KEEP_KERNELS = 40, 26, 14
_HOPPER = MULTIPROCESSORS[90]


@dataclass(frozen=True, kw_only=True)
class Round:
    """The seconds of a round, by what takes them."""

    products: float
    keys: float
    kernels: float
    peer: float  # all of a round of vLLM, as guessed

    @property
    def seconds(self) -> float:
        """All of them."""
        return self.products + self.keys + self.kernels


def can_predict(gpu: Gpu) -> bool:
    """Tell whether there is Triton, and the GPU is one whose multiprocessors are known."""
    return gpu.num_multiprocessors > 0 and importlib.util.find_spec("triton") is not None


def launched_round(
    gpu: Gpu, shape: Shape, size: ModelSize, num_rows: int, positions_per_row: int, num_drafted: int = 0
) -> Round:
    """Return the time of a round of plain decoding, or of the target's part of one in which each row drafts as many.

    Raises ImportError where there is no Triton.
    """
    forward = Forward.of_round(num_rows, 1 + num_drafted, positions_per_row)
    *of_layer, head = products_of(shape)
    of_layers = shape.layers * sum(product(gpu, forward.num_tokens, *sizes) for sizes in of_layer)
    num_kernels = shape.layers * LAYER_KERNELS + OTHER_KERNELS
    return Round(
        products=of_layers + product(gpu, forward.num_tokens, *head),
        keys=size.cache_bytes_read(forward) / (KEYS_SHARE * gpu.bandwidth),
        kernels=KERNEL_SECONDS * num_kernels,
        peer=PEER_SECONDS + forward_seconds(gpu, size, forward) / PEER_SHARE,
    )


def headed_round(
    gpu: Gpu, shape: Shape, size: ModelSize, num_rows: int, positions_per_row: int, num_drafted: int
) -> Round:
    """Return the time of a round in which each row drafts as many tokens, at least 1, with an EAGLE-3 head."""
    verified = launched_round(gpu, shape, size, num_rows, positions_per_row, num_drafted)
    head, projection = ModelSize.of_head(shape.config()), NUM_FEATURES * shape.hidden**2
    in_all, layer = num_rows * (1 + num_drafted), head.layer_weights - projection

    def read(num_weights: int, num_lines: int) -> float:
        arithmetic = 2 * num_weights * num_lines / (COMPUTE_SHARE * gpu.flops)
        return max(head.bytes_per_value * num_weights / (BANDWIDTH_SHARE * gpu.bandwidth), arithmetic)

    step = Forward.of_round(num_rows, 1, positions_per_row)
    first, later = read(projection, in_all) + read(layer, in_all), (num_drafted - 1) * read(layer, num_rows)
    num_kernels = FIRST_STEP_KERNELS + (num_drafted - 1) * NEXT_STEP_KERNELS + KEEP_KERNELS
    keys = num_drafted * head.cache_bytes_read(step) / (KEYS_SHARE * gpu.bandwidth)
    products = first + later + num_drafted * read(head.head_weights, num_rows)
    return Round(
        products=verified.products + products,
        keys=verified.keys + keys,
        kernels=verified.kernels + KERNEL_SECONDS * num_kernels,
        peer=verified.peer + (products + keys * KEYS_SHARE / BANDWIDTH_SHARE) / PEER_SHARE,
    )


def products_of(shape: Shape) -> tuple[tuple[int, int, int], ...]:
    """Return outputs, inputs, and weights at once of the products of a layer, and of the head."""
    size = shape.head_size or shape.hidden // shape.heads
    queries, keys = shape.heads * size, shape.kv_heads * size
    of_attention = (queries + 2 * keys, shape.hidden, 1), (shape.hidden, queries, 1)
    of_mlp = (shape.feed_forward, shape.hidden, 2), (shape.hidden, shape.feed_forward, 1)
    return *of_attention, *of_mlp, (shape.vocab, shape.hidden, 1)


def product(gpu: Gpu, num_lines: int, num_outputs: int, num_inputs: int, num_weights: int) -> float:
    """Return the seconds of a product in bfloat16, without those of starting it.

    Its tile is the one that takes the least of those among which the clock chooses on a GPU, which is not slower there
    than this one.
    """
    from decoding.gpu.tiles import Weight  # its tiles are for Triton

    weight = Weight(num_outputs, num_inputs, torch.bfloat16, num_weights)
    return min(with_tile(gpu, num_lines, weight, tile) for tile in weight.tiles(num_lines))


def with_tile(gpu: Gpu, num_lines: int, weight: Any, tile: Any) -> float:
    """Return the seconds of a product with this tile of `decoding.gpu.tiles`."""
    is_whole = tile.is_whole or weight.num_parts == 1
    num_tiles = tile.num_tiles(num_lines, weight.num_outputs)
    num_programs = num_tiles * (1 if is_whole else weight.num_parts)
    places = gpu.num_multiprocessors * num_at_once(tile, weight.num_weights)
    filled = num_programs / (-(-num_programs // places) * places)
    weights = 2 * weight.num_weights * weight.num_outputs * weight.num_inputs
    # Each tile reads its lines and its weights, of all inputs; sums are written and read once more, in float32.
    cached = 2 * num_tiles * (tile.lines + weight.num_weights * tile.outputs) * weight.num_inputs
    if weight.num_parts > 1:
        cached += 8 * (1 if is_whole else weight.num_parts) * num_lines * weight.num_outputs
    lines = -(-num_lines // tile.lines) * tile.lines
    arithmetic = weights * lines / (COMPUTE_SHARE * gpu.flops)
    seconds: float = max(
        weights / (BANDWIDTH_SHARE * gpu.bandwidth), max(cached / CACHE_BANDWIDTH, arithmetic) / filled
    )
    return seconds


def num_at_once(tile: Any, num_weights: int) -> int:
    """Return how many programs with a tile of `decoding.gpu.tiles` one multiprocessor runs at once.

    A thread has registers for its sums, half as many more for what it multiplies, and some; a test compares the number
    with that of the compiled programs.
    """
    num_registers = 32 + 3 * tile.num_numbers(num_weights + tile.is_whole) // 2
    return _HOPPER.num_at_once(32 * tile.num_warps, tile.num_bytes(num_weights), num_registers)
