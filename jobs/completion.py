"""`dray completion bash|zsh|fish`: print the script by which a shell completes words.

bash:  dray completion bash > ~/.local/share/bash-completion/completions/dray
zsh:   dray completion zsh > ~/.dray-completion
       and in ~/.zshrc a line: source ~/.dray-completion
fish:  dray completion fish > ~/.config/fish/completions/dray.fish

What is no flag is completed as a file.
"""

import argparse
import sys

from jobs.commands import argument, with_options


def _said(parser: argparse.ArgumentParser) -> None:
    """Take the words that bash gives beside COMP_LINE; they are no argument that a person could miss."""
    parser.add_argument("said", nargs=argparse.REMAINDER, help=argparse.SUPPRESS).required = False


main = with_options(
    "completion",
    __doc__,
    "jobs.machine.completion:complete",
    argument("shell", choices=("bash", "zsh", "fish", "words"), metavar="bash|zsh|fish", help="who reads the script"),
    _said,
)

if __name__ == "__main__":
    sys.exit(main())
