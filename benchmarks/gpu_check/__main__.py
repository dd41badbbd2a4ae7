"""`python -m benchmarks.gpu_check`: is a GPU right, and how fast is it? In parts, each of nine minutes at most.

Needs torch, transformers, Triton and pytest with pytest-timeout, and no Ray. What each part found is kept as a file in
--out, so that a second call goes on with what is missing; `benchmarks/README.md` says how to read the table.
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.gpu_check import table
from benchmarks.gpu_check.parts import MINIATURE, PARTS, Part, select
from benchmarks.gpu_check.results import Kept, PartResult, keep, read_results
from benchmarks.gpu_check.running import run_part
from benchmarks.harness import listed, say

_LIMIT_SECONDS = 540.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what has not run, and print the table; return 0 if all is as wanted, 1 if not, 2 if nothing could run."""
    given = _make_parser().parse_args(arguments)
    parts = MINIATURE if given.miniature else PARTS
    folder = given.out / "miniature" if given.miniature else given.out
    try:
        if not given.limit > 0:
            raise ValueError(f"--limit must be above 0 seconds, got {given.limit:g}")
        chosen = select(parts, given.part)
        if given.list:
            _print_commands(chosen, folder, given.pairs)
            return 0
        if not given.table:
            run_missing(chosen, folder, given.pairs, limit_seconds=given.limit, again=given.again, gpu=_has_gpu(given))
        kept = read_results(folder)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(*table.lines(parts, kept), sep="\n")
    return 0 if table.is_as_wanted(parts, kept) else 1


def run_missing(
    parts: Sequence[Part], folder: Path, pairs: Path, *, limit_seconds: float, again: bool, gpu: bool
) -> None:
    """Run the parts of which nothing is kept, or all of them again; keep why one cannot be measured."""
    kept = read_results(folder)
    for part in parts:
        if part.needs_gpu and not gpu:
            if again or not _has_run(part, kept):
                keep(PartResult(part=part.name, status="not measured", why="no GPU"), folder)
        elif again or not _has_run(part, kept):
            say(f"{part.name} ...")
            result = run_part(part, folder, pairs, limit_seconds)
            say(f"{part.name}: {result.status} in {result.seconds:.0f} s {result.why}")
        else:
            say(f"{part.name}: is kept in {folder} (--again runs it again)")


def _has_run(part: Part, kept: Kept) -> bool:
    return part.name in kept and kept[part.name].has_run


def _has_gpu(given: argparse.Namespace) -> bool:
    """Tell whether there is a GPU to measure; raise ValueError if there must be one."""
    if given.miniature:
        return False
    if not torch.cuda.is_available():
        raise ValueError(
            "torch sees no CUDA device here; --miniature runs what can run without one, in Triton's interpreter"
        )
    return True


def _print_commands(parts: Sequence[Part], folder: Path, pairs: Path) -> None:
    """Print each part as it can be typed in the repository's root."""
    for part in parts:
        command = part.command(folder / f"{part.name}.measured.json", pairs)
        print(f"# {part.name}: {part.asks}")
        print(shlex.join([*(f"{name}={value}" for name, value in part.environment.items()), "python", *command[1:]]))


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_check",
        description="Is a GPU right, and how fast is it? Each part runs by itself for a limited time; a second call "
        "goes on with what is missing.",
    )
    flag = parser.add_argument
    flag("--part", type=listed(str), default=(), metavar="NAMES", help="these parts, by name or glob, with commas")
    flag("--again", action="store_true", help="also run what has run")
    flag("--table", action="store_true", help="run nothing: print the table of what is kept")
    flag("--list", action="store_true", help="run nothing: print the commands of the parts")
    flag("--miniature", action="store_true", help="what can run without a GPU, in Triton's interpreter")
    flag("--limit", type=float, default=_LIMIT_SECONDS, metavar="SECONDS", help="of each part (default %(default)g)")
    flag("--out", type=Path, default=Path("out/gpu-check"), metavar="FOLDER", help="default %(default)s")
    flag("--pairs", type=Path, default=Path("out/pairs"), metavar="FOLDER", help="where made pairs are kept")
    return parser


if __name__ == "__main__":
    sys.exit(main())
