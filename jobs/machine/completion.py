"""The work of `dray completion`: shells ask it for words, which come from the names of commands and their own help."""

import argparse
import io
import os
import re
from contextlib import redirect_stdout, suppress
from importlib import import_module

from jobs.driver.stopping import Exit
from jobs.names import commands, typed

_FLAG = re.compile(r"(?<![\w-])--\w[\w.-]*")
_BASH = "complete -o bashdefault -o default -C 'dray completion words' dray"
_SCRIPTS = {
    "bash": _BASH,
    "zsh": f"autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n{_BASH}",
    "fish": "complete -c dray -a '(env COMP_LINE=(commandline -cp | string collect) dray completion words)'",
}


def complete(options: argparse.Namespace) -> Exit:
    """Print the script for a shell, or the words that the line in COMP_LINE may go on with; return the exit code."""
    if options.shell in _SCRIPTS:
        print(_SCRIPTS[options.shell])
    else:
        print(*words_after(os.environ.get("COMP_LINE", "")), sep="\n")
    return Exit.COMPLETE


def words_after(line: str) -> list[str]:
    """Return the words that the last one of a line may become: commands, then flags; what is no flag is a file."""
    *before, last = line.split(" ")
    given = [word for word in before if word]
    known = [typed(name) for name in commands()]
    if len(given) == 1:
        return [name for name in known if name.startswith(last)]
    if last.startswith("-") and given[1:] and given[1] in known:
        return [flag for flag in flags_of(given[1].replace("-", "_")) if flag.startswith(last)]
    return []


def flags_of(name: str) -> list[str]:
    """Return the flags of a command, as the lines of its help begin with them."""
    said = io.StringIO()
    with redirect_stdout(said), suppress(SystemExit):
        import_module(f"jobs.{name}").main(["--help"])
    lines = [line for line in said.getvalue().splitlines() if line.startswith("  -")]
    return list(dict.fromkeys(flag for line in lines for flag in _FLAG.findall(line.partition("   ")[0])))
