"""Ideal: the time of forwards and rounds on a GPU that is as fast as good kernels get, and the speed that follows.

- A forward is its products with weights, then its attention. Each of them takes as long as reading its bytes (weights;
  keys and values) at 90 % of the stated bandwidth, or as its arithmetic at 70 % of the stated compute, whichever is
  longer. The two are added up, since attention and products alternate layer by layer.
- A round is one forward of the target over K + 1 tokens of each row, and K forwards of the draft over one. It takes
  0.3 ms more, and each draft step 0.05 ms: an estimate of starting recorded graphs and of the pauses between kernels
  that wait for each other. Nothing else costs time: no sampling, no Python, no prefill.
- Each draft token is accepted with the same chance, whatever its position, so that a round of K draft tokens writes
  1 + a + a^2 + ... + a^K tokens a row.

The estimate is no measurement and no bound: the vendor's own figures are bounds. It says what to compare a measured
figure with. What is written (keys, values, logits) is left out, and so are norms and activations.
"""

from dataclasses import dataclass
from operator import attrgetter

from benchmarks.roofline.gpus import Gpu
from benchmarks.roofline.model_size import Forward, ModelSize

BANDWIDTH_SHARE = 0.9
COMPUTE_SHARE = 0.7
ROUND_SECONDS = 0.3e-3
STEP_SECONDS = 0.05e-3
MAX_DRAFT_TOKENS = 16


@dataclass(frozen=True)
class Drafting:
    """A draft model, the positions of a row whose keys it reads, and how often its tokens are accepted."""

    size: ModelSize
    positions_per_row: int
    acceptance: float


@dataclass(frozen=True)
class Speed:
    """Output tokens a second of all rows, with this many draft tokens a round."""

    tokens_per_second: float
    num_draft_tokens: int


def forward_seconds(gpu: Gpu, size: ModelSize, forward: Forward) -> float:
    """Return the time of one forward, in seconds."""
    products = _seconds(gpu, size.weight_bytes_read(forward), size.product_flops(forward))
    return products + _seconds(gpu, size.cache_bytes_read(forward), size.attention_flops(forward))


def plain_speed(gpu: Gpu, target: ModelSize, num_rows: int, positions_per_row: int) -> Speed:
    """Return the speed of plain decoding: rounds without a draft."""
    seconds = ROUND_SECONDS + forward_seconds(gpu, target, Forward.of_round(num_rows, 1, positions_per_row))
    return Speed(num_rows / seconds, 0)


def drafted_speed(
    gpu: Gpu, target: ModelSize, drafting: Drafting, num_rows: int, positions_per_row: int, num_draft_tokens: int
) -> Speed:
    """Return the speed of speculative decoding with `num_draft_tokens` draft tokens of each row in every round."""
    scored = Forward.of_round(num_rows, num_draft_tokens + 1, positions_per_row)
    step = Forward.of_round(num_rows, 1, min(drafting.positions_per_row, positions_per_row))
    step_seconds = STEP_SECONDS + forward_seconds(gpu, drafting.size, step)
    seconds = ROUND_SECONDS + forward_seconds(gpu, target, scored) + num_draft_tokens * step_seconds
    tokens_per_row = sum(drafting.acceptance**index for index in range(num_draft_tokens + 1))
    return Speed(num_rows * tokens_per_row / seconds, num_draft_tokens)


def best_speed(gpu: Gpu, target: ModelSize, drafting: Drafting, num_rows: int, positions_per_row: int) -> Speed:
    """Return the speed with the draft length that is fastest, 1 at least."""
    lengths = range(1, MAX_DRAFT_TOKENS + 1)
    speeds = (drafted_speed(gpu, target, drafting, num_rows, positions_per_row, length) for length in lengths)
    return max(speeds, key=attrgetter("tokens_per_second"))


def memory_bytes(num_rows: int, *models: tuple[ModelSize, int]) -> int:
    """Return the bytes of weights and slots: each model is given with the positions of one of its slots."""
    return sum(size.weight_bytes + num_rows * positions * size.cache_bytes for size, positions in models)


def _seconds(gpu: Gpu, num_bytes: float, flops: float) -> float:
    return max(num_bytes / (BANDWIDTH_SHARE * gpu.bandwidth), flops / (COMPUTE_SHARE * gpu.flops))
