"""`dray COMMAND ...`, or `python -m jobs COMMAND ...`: every command under one name. `dray --help` lists them."""

import sys
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path

from jobs.names import GROUPS, commands, summary, tell, typed

_USAGE = """usage: dray COMMAND [ARGUMENT ...]

example: dray generate questions.jsonl out/ --model Qwen/Qwen3-0.6B"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the first argument names, and return its exit code; 2 if there is no such command."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help", "help"):
        print("\n\n".join([_USAGE, *map("\n".join, _listed()), "`dray COMMAND --help` says what a command takes."]))
        return 0 if given else 2
    if (here := str(Path.cwd())) not in sys.path and "" not in sys.path:
        sys.path.append(here)  # a program of the user's is found there, as with python -m
    name = given[0].replace("-", "_")
    if name not in commands():
        near = get_close_matches(given[0], map(typed, commands()), n=1, cutoff=0.5)
        meant = f"; did you mean {near[0]}?" if near else ""
        tell(f"error: {given[0]!r} is no command{meant} (dray --help lists them all)")
        return 2
    return int(import_module(f"jobs.{name}").main(given[1:]))


def _listed() -> Iterator[list[str]]:
    """Yield the lines of each group of commands."""
    for title, names in GROUPS.items():
        yield [f"{title}:", *(f"  {typed(name):14} {summary(name)}" for name in names)]


if __name__ == "__main__":
    sys.exit(main())
