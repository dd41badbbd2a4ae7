"""RayCluster: several raylets on this machine, which tests add, kill and freeze."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.pipeline.stores import CREDENTIALS

ROOT = Path(__file__).resolve().parents[2]
_OBJECT_STORE_BYTES = 80_000_000  # about the least that Ray takes
NOTICE_DEATH = {  # Ray's own values let a minute pass
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "4",
}


@dataclass
class RayCluster:
    """A running cluster. The head has no CPUs, so that work is done on the other nodes, which may go."""

    address: str  # of the GCS, for ray.init
    dashboard: str  # host:port, for `ray job`
    environment: dict[str, str]  # of the cluster's processes; drivers and commands take the same
    folder: Path
    workers: dict[str, int] = field(default_factory=dict)  # node id -> the raylet's pid
    _server: Any = None

    def add_node(self, num_cpus: int = 2, **node: Any) -> str:
        """Add a node and return its id once it is alive. More logical CPUs than the machine has do no harm."""
        # With one folder for all nodes each would unpack a job's copy anew, over the copy in which the job runs.
        own = {"temp_dir": tempfile.mkdtemp(prefix="", dir=self.folder)}
        node = {"num_cpus": num_cpus, "object_store_memory": _OBJECT_STORE_BYTES, **own, **node}
        answer = self._ask({"add": node})
        self.workers[answer["node_id"]] = answer["raylet_pid"]
        return str(answer["node_id"])

    def kill_node(self, node_id: str) -> None:
        """Kill all processes of a node."""
        del self.workers[node_id]
        self._ask({"kill": node_id})

    def drain_node(self, node_id: str, notice_s: int = 30) -> None:
        """Tell the cluster that a node will go, as `drain.sh` does in a pod of a spot machine."""
        words = ["drain-node", "--address", self.address, "--node-id", node_id, "--reason-message", "it is taken away"]
        words += ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--deadline-remaining-seconds", str(notice_s)]
        subprocess.run(["ray", *words], env=self.environment, check=True, capture_output=True, timeout=120)

    def grow_to(self, num_workers: int) -> None:
        """Add nodes until there are `num_workers` beside the head."""
        while len(self.workers) < num_workers:
            self.add_node()

    def driver_command(self, words: list[str]) -> list[str]:
        """Return the command that runs these words where drivers run."""
        return words

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        line = self._server.stdout.readline()
        assert line, f"the cluster ended: {(self.folder / 'log').read_text()[-3000:]}"
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def running_cluster(more_environment: dict[str, str] | None = None, **head: Any) -> Iterator[RayCluster]:
    """Run a cluster that has only a head, as long as the block runs."""
    folder = Path(tempfile.mkdtemp(prefix="ray-"))  # short: the paths of its sockets may have 107 bytes
    environment = cluster_environment(folder) | (more_environment or {})
    node = {
        "num_cpus": 0,
        "object_store_memory": _OBJECT_STORE_BYTES,
        "temp_dir": str(folder / "ray"),
        "include_dashboard": True,
        "dashboard_port": free_port(),
        "dashboard_agent_listen_port": 0,
        **head,
    }
    command = [sys.executable, "-m", "tests.faults.cluster_server", json.dumps(node)]
    with open(folder / "log", "w") as log:
        server = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT, env=environment
        )
    cluster = RayCluster("", "", environment, folder, _server=server)
    try:
        head_node = cluster._answer()
        cluster.address, cluster.dashboard = head_node["address"], head_node["dashboard"]
        yield cluster
    finally:
        assert server.stdin is not None
        server.stdin.close()
        server.wait(120)
        shutil.rmtree(folder, ignore_errors=True)


def cluster_environment(folder: Path) -> dict[str, str]:
    """Return this process's environment with what a cluster of the tests needs, without another cluster's address.

    RAY_TMPDIR keeps the file that says where the newest cluster of this machine is: no other Ray shall find ours there.
    """
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    return environment | {
        "RAY_TMPDIR": str(folder),
        "RAY_AUTH_MODE": "disabled",
        "RAY_memory_monitor_refresh_ms": "0",
        "PYTHONPATH": str(ROOT),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        **NOTICE_DEATH,
        **CREDENTIALS,
    }


def free_port() -> int:
    """Return a port on which no process listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
