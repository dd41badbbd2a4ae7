"""`python -m jobs.models [TYPE ...]`: which of transformers' language models the engine runs exactly.

Builds a tiny random model of every causal language model class in the installed transformers, lets the probe decide
whether the engine may run it, and compares what every drafter writes with transformers' own code. Each class ends as

exact      no token differs
refused    the engine says why it does not run this model
not tried  no tiny model can be made from the default configuration of the class
wrong      a token differs
crash      something else was raised

Exit code 0 if none is wrong or crashes, else 1; 2 for a type that transformers does not know.
"""

import argparse
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path

import torch
import transformers
from rich.console import Console

from jobs.proving.family import Family, model_types, try_family

_WRONG = ("wrong", "crash")
_MODELS_AT_ONCE = 32  # then new processes go on: modules and random models stay in memory otherwise
_STYLES = {"exact": "green", "wrong": "red", "crash": "red"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the models, print a line for each as it is done, and return the exit code."""
    options = _parser().parse_args(arguments)
    if unknown := sorted(set(options.types) - set(model_types())):
        print(f"error: transformers {transformers.__version__} has no causal model {unknown[0]!r}", file=sys.stderr)
        return 2
    if options.processes < 1:
        print(f"error: --processes is {options.processes}; use 1 or more", file=sys.stderr)
        return 2
    if options.write is not None and not Path(options.write).parent.is_dir():
        print(f"error: --write {options.write!r} is in no folder that exists", file=sys.stderr)
        return 2
    console, found = Console(), []
    for family in _tried(options.types or model_types(), options.processes):
        found.append(family)
        what = family.reason or f"{family.num_tokens:,} tokens, {family.num_accepted_tokens:,} of them drafted"
        console.print(f"[{_STYLES.get(family.verdict, 'yellow')}]{family.verdict:9}[/] {family.model_type:28} ", end="")
        console.print(what, highlight=False, markup=False, soft_wrap=True)
    console.print(_summary(found), style="bold", highlight=False)
    if options.write is not None:
        Path(options.write).write_text(_page(found))
    return int(any(family.verdict in _WRONG for family in found))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m jobs.models", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("types", nargs="*", metavar="TYPE", help="model types, such as llama; unless given, all")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="models tried at once")
    parser.add_argument("--write", metavar="FILE", help="write the table as a Markdown page")
    return parser


def _tried(types: Sequence[str], num_processes: int) -> Iterator[Family]:
    for start in range(0, len(types), _MODELS_AT_ONCE):
        some, num_done = types[start : start + _MODELS_AT_ONCE], 0
        try:
            with _processes(min(num_processes, len(some))) as processes:
                for family in processes.map(try_family, some):
                    num_done += 1
                    yield family
        except BrokenProcessPool:  # one of those that were left killed its process
            yield from map(_tried_alone, some[num_done:])


def _tried_alone(model_type: str) -> Family:
    try:
        with _processes(1) as processes:
            return processes.submit(try_family, model_type).result()
    except BrokenProcessPool:
        return Family(model_type, "", "crash", "it killed its process")


def _processes(num_processes: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(num_processes, get_context("spawn"), _begin)


def _begin() -> None:
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    transformers.utils.logging.disable_progress_bar()


def _summary(found: Sequence[Family]) -> str:
    counts = {name: sum(family.verdict == name for family in found) for name in _MEANINGS}
    num_tokens = sum(family.num_tokens for family in found)
    listed = ", ".join(f"{count} {name}" for name, count in counts.items() if count or name in _WRONG)
    return f"{len(found)} classes of transformers {transformers.__version__}: {listed}; {num_tokens:,} tokens compared"


_MEANINGS = {
    "exact": "Every drafter writes, token for token, what transformers' own code writes alone.",
    "refused": "The engine refuses them, for the reason that it gives.",
    "not tried": "No tiny model of them can be made from the default configuration of their class.",
    "wrong": "A token differs.",
    "crash": "Something failed otherwise.",
}
_HEAD = """\
# Models

<!-- Generated by `make models`; do not edit. -->

`python -m jobs.models` builds a tiny random model of every causal language model class in the installed transformers
and loads it as a run does. The probe decides whether the engine runs it. Then the texts of all drafters, with one slot
and with several, greedy and sampled, are compared with those of transformers' own code, in float32. A class that a
newer transformers adds is decided in the same way. A real model of an exact class can still be refused, if the probe
finds it otherwise when it is loaded; `python -m jobs.prove` compares with *your* weights ([the promise](promise.md)).
"""


def _page(found: Sequence[Family]) -> str:
    lines = [_HEAD, f"{_summary(found)}.\n"]
    for verdict, meaning in _MEANINGS.items():
        families = [family for family in found if family.verdict == verdict]
        if not families:
            continue
        lines += [f"## {verdict.capitalize()}\n", f"{meaning}\n"]
        if verdict == "exact":
            lines += [", ".join(f"`{family.model_type}`" for family in families) + "\n"]
        else:
            lines += ["| model type | why |", "| --- | --- |"]
            lines += [f"| `{family.model_type}` | {family.reason.replace('|', '/')} |" for family in families]
            lines += [""]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
