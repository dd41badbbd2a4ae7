"""`dray COMMAND ...`, or `python -m jobs COMMAND ...`: every command under one name. `dray --help` lists them."""

import ast
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path

_FOLDER = Path(__file__).parent
_NO_COMMANDS = ("__init__", "__main__", "commands", "shadows")
_USAGE = "usage: dray COMMAND [ARGUMENT ...]"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the first argument names, and return its exit code; 2 if there is no such command."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help", "help"):
        listed = "\n".join(f"  {name:14} {summary(name)}" for name in commands())
        print(f"{_USAGE}\n\n{listed}\n\n`dray COMMAND --help` says what a command takes.")
        return 0 if given else 2
    name = given[0].replace("-", "_")
    if name not in commands():
        near = get_close_matches(name, commands(), n=1, cutoff=0.5)
        meant = f"; did you mean {near[0]}?" if near else ""
        print(f"error: {given[0]!r} is no command{meant} (dray --help lists them all)", file=sys.stderr)
        return 2
    return int(import_module(f"jobs.{name}").main(given[1:]))


def commands() -> list[str]:
    """Return the names of all commands: the files beside this one."""
    return sorted(path.stem for path in _FOLDER.glob("*.py") if path.stem not in _NO_COMMANDS)


def summary(name: str) -> str:
    """Return what a command does: the first line of its docstring behind the colon. The command is not imported."""
    tree = ast.parse((_FOLDER / f"{name}.py").read_text(encoding="utf-8"))
    line = (ast.get_docstring(tree) or "").partition("\n")[0]
    return line.partition("`: ")[2]


if __name__ == "__main__":
    sys.exit(main())
