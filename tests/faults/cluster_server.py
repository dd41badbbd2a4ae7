"""`python -m tests.faults.cluster_server HEAD`: a Ray cluster of several raylets, told what to do line by line.

It has a process of its own, so that its environment (how soon a death is noticed, where Ray keeps its files) is its own
and no other Ray of the test process hears of it. Each line of stdin is a request, each line of stdout its answer, both
JSON: {"add": {num_cpus: 1, ...}} -> {"node_id", "raylet_pid"}; {"kill": node_id} -> {}. At the end of stdin all nodes
go; should this process be killed, they go too.
"""

import json
import os
import sys
from contextlib import suppress
from typing import Any

import ray
from ray.cluster_utils import Cluster


def main() -> None:
    """Serve until stdin ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what Ray prints is no answer
    cluster = Cluster(initialize_head=True, head_node_args=json.loads(sys.argv[1]))
    nodes: dict[str, Any] = {}
    head = _describe(cluster.head_node) | {"address": cluster.address, "dashboard": cluster.webui_url}
    answers.write(json.dumps(head) + "\n")
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        answer: dict[str, Any] = {}
        if "add" in request:
            node = cluster.add_node(**request["add"])
            answer = _describe(node)
            nodes[answer["node_id"]] = node
        else:
            cluster.remove_node(nodes.pop(request["kill"]), allow_graceful=False)
        answers.write(json.dumps(answer) + "\n")
    _end(cluster)


def _describe(node: Any) -> dict[str, Any]:
    return {"node_id": node.node_id, "raylet_pid": node.all_processes["raylet"][0].process.pid}


def _end(cluster: Cluster) -> None:
    """End every process, also those of nodes that an autoscaler has started."""
    psutil = ray._private.utils.psutil  # the copy that comes with Ray
    descendants = psutil.Process().children(recursive=True)
    cluster.shutdown()
    for process in descendants:
        with suppress(psutil.NoSuchProcess):
            process.kill()


if __name__ == "__main__":
    main()
