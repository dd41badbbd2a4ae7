"""The work of `dray completion`: scripts for shells, from what each command's own help says of its flags."""

import argparse
import io
import re
from contextlib import redirect_stdout, suppress
from importlib import import_module

from jobs.driver.stopping import Exit
from jobs.names import commands, summary, typed

_FLAG = re.compile(r"(?<![\w-])--\w[\w.-]*")
_BASH = """_dray() {
  local word=${COMP_WORDS[COMP_CWORD]}
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "%(commands)s" -- "$word"))
  elif [[ $word == -* ]]; then
    case ${COMP_WORDS[1]//-/_} in
%(cases)s
    esac
  fi
}
complete -o bashdefault -o default -F _dray dray"""
_CASE = """      {name}) COMPREPLY=($(compgen -W "{flags}" -- "$word")) ;;"""
_ZSH = "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit"


def print_script(options: argparse.Namespace) -> Exit:
    """Print the script for a shell, and return the exit code."""
    flags = {name: flags_of(name) for name in commands()}
    if options.shell == "fish":
        for name, own in flags.items():
            said = summary(name).replace("'", "\\'")
            print(f"complete -c dray -n __fish_use_subcommand -a {typed(name)} -d '{said}'")
            print(
                *(f"complete -c dray -n '__fish_seen_subcommand_from {typed(name)}' -l {flag[2:]}" for flag in own),
                sep="\n",
            )
        return Exit.COMPLETE
    cases = "\n".join(_CASE.format(name=name, flags=" ".join(own)) for name, own in flags.items())
    print(
        *([_ZSH] if options.shell == "zsh" else []),
        _BASH % {"commands": " ".join(map(typed, flags)), "cases": cases},
        sep="\n",
    )
    return Exit.COMPLETE


def flags_of(name: str) -> list[str]:
    """Return the flags of a command, as the lines of its help begin with them."""
    said = io.StringIO()
    with redirect_stdout(said), suppress(SystemExit):
        import_module(f"jobs.{name}").main(["--help"])
    lines = [line for line in said.getvalue().splitlines() if line.startswith("  -")]
    return list(dict.fromkeys(flag for line in lines for flag in _FLAG.findall(line.partition("   ")[0])))
