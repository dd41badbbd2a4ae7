"""`python -m benchmarks.gpu_check.pair --json FILE`: make the 8B pair, which the parts that measure speed use."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.harness import write_json
from benchmarks.pair_factory import cached_pair, describe_pair

SIZE, ACCEPTANCE = "8b", 0.8
DTYPE: Final = "bfloat16"


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the pair on the GPU, unless it is there; write what it is, and return 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_check.pair")
    parser.add_argument("--cache", type=Path, default=Path("out/pairs"), metavar="FOLDER")
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    given = parser.parse_args(arguments)
    folder = cached_pair(given.cache, SIZE, ACCEPTANCE, DTYPE, device="cuda")
    write_json(given.json, {"folder": folder, **describe_pair(folder)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
