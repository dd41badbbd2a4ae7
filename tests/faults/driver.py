"""`python -m tests.faults.driver GENERATOR OPTIONS ARGUMENTS...`: jobs.generate with one of our generators.

GENERATOR names a function of tests.faults.generators, OPTIONS are its arguments as JSON.
"""

import json
import sys

from jobs import generate
from jobs.driver import execution
from tests.faults import generators

if __name__ == "__main__":
    name, options, *arguments = sys.argv[1:]
    execution.EngineWorker = getattr(generators, name)(**json.loads(options))  # type: ignore[misc]
    sys.exit(generate.main(arguments))
