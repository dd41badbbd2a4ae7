"""`python -m tests.faults.driver GENERATOR OPTIONS ARGUMENTS...`: jobs.generate with one of our generators.

GENERATOR names a function of tests.faults.generators, OPTIONS are its arguments as JSON.
"""

import json
import sys
from typing import Any

import ray

from jobs import generate
from jobs.driver import execution
from tests.faults import generators

_join = ray.init


def join_here(address: str, **options: Any) -> Any:
    """Join a cluster by the node on this host's address: hosts of one machine see each other's processes, and Ray would
    take the head's node."""
    here = None if address == "local" else ray.util.get_node_ip_address(address)
    return _join(address, _node_ip_address=here, **options)


if __name__ == "__main__":
    name, options, *arguments = sys.argv[1:]
    ray.init = join_here
    execution.EngineWorker = getattr(generators, name)(**json.loads(options))  # type: ignore[misc]
    sys.exit(generate.main(arguments))
