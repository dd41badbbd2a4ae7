"""`python -m k8s.sizing TARGET [DRAFT]`: how many slots fit into a GPU, as a table in Markdown.

Both are folders or names on the hub, of which only config.json is read. A draft with a GPU of its own (placement
"split") is asked for by itself.
"""

import argparse
import sys
from collections.abc import Sequence

from transformers import AutoConfig, PretrainedConfig

from decoding.cache.footprint import GIB, SHARE, Footprint
from decoding.checkpoint.fp8_format import fp8_format
from decoding.checkpoint.loading import footprint_of
from decoding.checkpoint.quantized.packed_format import packed_layout
from decoding.engine.options import EngineOptions

GPU_GIB = {  # as CUDA reports them to programs
    "H200 (141 GB)": 139.7,
    "H100, A100 (80 GB)": 79.1,
    "L40S (48 GB)": 44.4,
    "L4, A10G (24 GB)": 21.9,
}
LENGTHS = (1024, 2048, 4096, 8192)


def num_slots(models: Sequence[PretrainedConfig], dtype: str, gpu_gib: float, max_model_len: int) -> int:
    """Return how many slots of `max_model_len` tokens a GPU holds beside the weights of all models, 0 if none fits."""
    one = [_footprint(model, dtype, max_model_len) for model in models]
    left = SHARE * gpu_gib * GIB - sum(each.weights for each in one)
    return max(0, int(left // sum(each.cache for each in one)))


def _footprint(model: PretrainedConfig, dtype: str, max_model_len: int) -> Footprint:
    """Return the footprint of a model with one slot, where rows draft as many tokens as they do by default."""
    return footprint_of(model, dtype, 1, max_model_len, EngineOptions.num_speculative_tokens)


def table(models: Sequence[PretrainedConfig], dtype: str) -> list[str]:
    """Return the lines of a Markdown table with the number of slots by GPU and by `max_model_len`."""
    lines = ["| slots of | " + " | ".join(f"{length:,} tokens" for length in LENGTHS) + " |"]
    lines.append("|---" * (len(LENGTHS) + 1) + "|")
    for gpu, gib in GPU_GIB.items():
        slots = (num_slots(models, dtype, gib, length) for length in LENGTHS)
        lines.append(f"| {gpu} | " + " | ".join(f"{number:,}" for number in slots) + " |")
    return lines


def describe(name: str, footprint: Footprint) -> str:
    """Return a line with the sizes of a model's weights, of its cache, and of its states if it has any."""
    weights, cache, states = footprint.weights / GIB, footprint.cache_per_token, footprint.states_per_slot
    line = f"{name}: weights {weights:.2f} GiB, cache of a token {cache:,} bytes"
    return f"{line}, states of a slot {states:,} bytes" if states else line


def config_of(name: str) -> PretrainedConfig:
    """Read a model's configuration; raise a ValueError if it is quantized in a way that Dray does not run."""
    config = AutoConfig.from_pretrained(name, trust_remote_code=False)
    try:
        fp8_format(config)
        packed_layout(config)
    except ValueError as error:
        raise ValueError(f"{name!r} {error}") from error
    return config


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m k8s.sizing", description="How many slots fit into a GPU.")
    parser.add_argument("models", nargs="+", metavar="MODEL", help="target, and draft if both share the GPU")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    asked = parser.parse_args(arguments)
    try:
        configs = [config_of(name) for name in asked.models]
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for name, config in zip(asked.models, configs, strict=True):
        print(describe(name, _footprint(config, asked.dtype, 1)))
    print("", *table(configs, asked.dtype), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
