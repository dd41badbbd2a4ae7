"""`dray models [TYPE ...]`: which of transformers' language models the engine runs exactly.

Builds a tiny random model of every causal language model class in the installed transformers, and more with options as
models of the class were published, lets the probe decide whether the engine may run it, and compares what every drafter
writes with transformers' own code. Each ends as

exact      no token differs
refused    the engine says why it does not run this model
not tried  no tiny model can be made from the default configuration of the
           class, or these options
wrong      a token differs
crash      something else was raised

Exit code 0 if none is wrong or crashes, else 1; 2 for a type that transformers does not know.
"""

import os
import sys

from jobs.commands import argument, with_options

main = with_options(
    "models",
    __doc__,
    "jobs.proving.family:try_models",
    argument("types", nargs="*", metavar="TYPE", help="model types, such as llama; unless given, all"),
    argument("--processes", type=int, default=os.cpu_count() or 1, help="models tried at once"),
    argument("--write", metavar="FILE", help="write the table as a Markdown page"),
)

if __name__ == "__main__":
    sys.exit(main())
