"""COMMANDS: one file per `python -m jobs.<name>`, or `dray <name>`."""

import sys

from jobs.shadows import refuse_shadows

try:
    refuse_shadows(sys.path)
except ValueError as error:
    # With its own name, `python -m` prints the message in one line; else it would print a traceback.
    raise ImportError(str(error), name=__name__) from error
