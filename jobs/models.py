"""`python -m jobs.models [TYPE ...]`: which of transformers' language models the engine runs exactly.

Builds a tiny random model of every causal language model class in the installed transformers, and more with options as
models of the class were published, lets the probe decide whether the engine may run it, and compares what every drafter
writes with transformers' own code. Each ends as

exact      no token differs
refused    the engine says why it does not run this model
not tried  no tiny model can be made from the default configuration of the class, or these options
wrong      a token differs
crash      something else was raised

Exit code 0 if none is wrong or crashes, else 1; 2 for a type that transformers does not know.
"""

import argparse
import os
import sys
from collections.abc import Sequence

from jobs.driver.exits import program


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the models, print a line for each as it is done, and return the exit code."""
    options = _parser().parse_args(arguments)
    from jobs.work.model_classes import try_models  # here, since it needs torch, which --help does not

    return try_models(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program("models"), description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("types", nargs="*", metavar="TYPE", help="model types, such as llama; unless given, all")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="models tried at once")
    parser.add_argument("--write", metavar="FILE", help="write the table as a Markdown page")
    return parser


if __name__ == "__main__":
    sys.exit(main())
