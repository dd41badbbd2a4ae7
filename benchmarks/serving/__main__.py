"""`python -m benchmarks.serving`: the endpoint against the engine alone, and under more than it can take.

python -m benchmarks.serving
python -m benchmarks.serving --size small --slots 8 --new-tokens 64 --repeats 3 --json out/serve.json
python -m benchmarks.serving --only throughput,latency --threads 2

All of it runs on this machine: a Ray Serve of its own with one replica, and in this process the engine alone and the
client. `--threads` is the number of threads of an engine, in the replica and alone; the other cores are for HTTP.
Throughput is measured on the same rows in turns, each time in a new order, and medians are reported.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

MEASURES = ("throughput", "latency", "refusals")
# Those of `benchmarks/pair_factory.py`, which loads torch.
_SIZES = ("tiny", "small", "medium", "hybrid", "gemma4", "nested-tiny", "8b")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and return 0, or 2 if something cannot be measured."""
    given = _parse(arguments)
    if unknown := set(given.only) - set(MEASURES):
        print(f"error: --only takes {', '.join(MEASURES)}; got {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    print("loading torch, transformers and Ray ...", file=sys.stderr, flush=True)
    from benchmarks.serving.run import run  # here, since --help is to need none of them

    return run(given)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serving", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    pair, prompts = Path("examples/tiny_pair"), Path("examples/prompts.jsonl")
    add("--pair", type=Path, default=pair, metavar="FOLDER", help="with target/ and draft/ (default %(default)s)")
    add("--prompts-file", type=Path, default=prompts, metavar="JSONL", help="rows with 'prompt' or 'messages'")
    add("--size", choices=_SIZES, help="make a pair of this size instead, of random weights and prompts")
    add("--acceptance", type=float, default=0.8, metavar="RATE", help="its greedy acceptance rate")
    add("--dtype", choices=("float32", "bfloat16"), default="float32")
    add("--new-tokens", type=int, default=64, metavar="N", help="output tokens of every row (default %(default)s)")
    add("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    add("--repeats", type=int, default=5, help="timed passes over everything (default %(default)s)")
    add("--draft-length", default="4", metavar="K", help="a number, or adaptive (default %(default)s)")
    add("--threads", type=int, default=1, help="of an engine (default %(default)s)")
    add("--slots", type=int, default=16, help="rows in flight (default %(default)s)")
    add("--max-waiting", type=int, default=16, metavar="N", help="requests that may wait (default %(default)s)")
    add("--rows", type=int, default=96, metavar="N", help="rows of a repeat (default %(default)s)")
    add("--few", type=int, default=16, metavar="N", help="least requests for a latency (default %(default)s)")
    add("--bursts", type=int, default=5, metavar="N", help="of four times what fits (default %(default)s)")
    add("--only", type=_names, default=MEASURES, metavar="NAMES", help=f"of {', '.join(MEASURES)}")
    add("--json", type=Path, metavar="FILE", help="write what was measured")
    return parser.parse_args(arguments)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


if __name__ == "__main__":
    sys.exit(main())
