"""A Ray cluster whose nodes are hosts of a network: a head, a desk where a driver may run, and two that do the work."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from signal import SIGCONT, SIGKILL

from ray._private.services import GcsClient
from ray.core.generated.gcs_pb2 import GcsNodeInfo
from ray.exceptions import RpcError

from tests.faults.cluster import NOTICE_DEATH, cluster_environment
from tests.jobs.runs import wait_until
from tests.network.hosts import Host, Network, joined_hosts

_PORT, _DASHBOARD_PORT = 6379, 8265
_OBJECT_STORE_BYTES = 80_000_000
_PATIENCE_S = 400.0  # on a machine with much else to do
# On a machine with much else to do a node takes its time to start, and workers that are not asked for cost too much.
_SPARING = {
    "RAY_raylet_start_wait_time_s": "180",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
}
_KEEPALIVE = {"RAY_grpc_client_keepalive_time_ms": "70000", "RAY_grpc_client_keepalive_timeout_ms": "20000"}  # as k8s/
# What systemd or Kubernetes does: a node that has ended, such as one that was declared dead, is started again.
_SUPERVISOR = 'while :; do "$@"; sleep 1; done'


@dataclass(frozen=True)
class NetworkCluster:
    """A running cluster. How soon it counts a node as dead is Ray's own: after about a minute without an answer."""

    network: Network
    folder: Path
    environment: dict[str, str]  # of the cluster's processes; drivers and commands take the same
    driver_host: Host

    @property
    def head(self) -> Host:
        """The host of the GCS."""
        return self.network.hosts[0]

    @property
    def desk(self) -> Host:
        """The host of a driver that is not on the head."""
        return self.network.hosts[1]

    @property
    def workers(self) -> list[Host]:
        """The hosts where the work is done."""
        return self.network.hosts[2:]

    @property
    def address(self) -> str:
        """The address of the GCS, for ray.init."""
        return f"{self.head.address}:{_PORT}"

    @property
    def dashboard(self) -> str:
        """The host:port of the dashboard, for `ray job`."""
        return f"{self.head.address}:{_DASHBOARD_PORT}"

    def driver_command(self, words: list[str]) -> list[str]:
        """Return the command that runs these words where drivers run."""
        return self.driver_host.command(*words)

    def driven_from(self, host: Host) -> NetworkCluster:
        """Return the same cluster, whose drivers run on another host."""
        return replace(self, driver_host=host)

    def start(self, host: Host, **environment: str) -> None:
        """Start a node on a host, and start it again whenever it ends. Only workers have CPUs."""
        words = ["--block", f"--node-ip-address={host.address}", f"--object-store-memory={_OBJECT_STORE_BYTES}"]
        words.append("--include-log-monitor=false")
        words.append(f"--temp-dir={self.folder / host.name[-1]}")
        if host is self.head:
            words += ["--head", f"--port={_PORT}", "--dashboard-host=0.0.0.0", f"--dashboard-port={_DASHBOARD_PORT}"]
        else:
            words.append(f"--address={self.address}")
        words.append("--num-cpus=2" if host in self.workers else "--num-cpus=0")
        words.append('--resources={"desk": 1}' if host is self.desk else "--resources={}")
        ray = str(Path(sys.executable).parent / "ray")
        command = host.command("sh", "-c", _SUPERVISOR, "supervisor", ray, "start", *words)
        with open(self.folder / f"{host.name}.log", "a") as log:
            subprocess.Popen(command, stdout=log, stderr=log, env=self.environment | environment)

    def end(self, host: Host) -> None:
        """End a host's node; return when the cluster counts it as gone. `mend` starts it again."""
        host.signal(SIGKILL)
        self._wait_for(lambda: not host.processes())
        self._wait_for(lambda: host.address not in self.nodes().values())

    def restart(self, host: Host, **environment: str) -> None:
        """End a host's node, and start it with more in its environment; return when the cluster has all nodes again."""
        self.end(host)
        self.start(host, **environment)
        self.mend()

    def nodes(self) -> dict[str, str]:
        """Return the addresses of the nodes that the GCS counts as alive, by node id; none while it cannot be asked."""
        try:
            socket.create_connection((self.head.address, _PORT), 5).close()
            gcs = GcsClient(address=self.address)
            found = gcs.get_all_node_info(timeout=30, state_filter=GcsNodeInfo.GcsNodeState.ALIVE)
        except (OSError, RpcError):
            return {}
        return {node.node_id.hex(): node.node_manager_address for node in found.values()}

    def host_of(self, process: int) -> Host:
        """Return the host that a process is on."""
        name = subprocess.run(["ip", "netns", "identify", str(process)], capture_output=True, text=True).stdout.strip()
        return next(host for host in self.network.hosts if host.name == name)

    def drain(self, node: str, seconds: int) -> None:
        """Tell the cluster that a node will be taken away in `seconds`, as the notice of a spot machine does."""
        why = ["--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=notice"]
        command = ["ray", "drain-node", f"--address={self.address}", f"--node-id={node}", *why]
        subprocess.run([*command, f"--deadline-remaining-seconds={seconds}"], check=True, env=self.environment)

    def vanish(self, host: Host) -> None:
        """End a host, as when its machine is taken away, with no word to the others."""
        self.network.shape(host, is_cut=True)
        host.signal(SIGKILL)

    def mend(self) -> None:
        """Mend every line, wake and start every host, and wait until all are alive."""
        for host in self.network.hosts:
            self.network.mend(host)
            host.signal(SIGCONT)
        for host in self.network.hosts:  # one after the other, the head first
            if not host.processes():
                self.start(host)
                self._wait_for(lambda host=host: host.address in self.nodes().values())
        addresses = [host.address for host in self.network.hosts]
        self._wait_for(lambda: sorted(self.nodes().values()) == addresses)

    def _wait_for(self, condition: Callable[[], bool]) -> None:
        try:
            wait_until(condition, _PATIENCE_S, 0.5)
        except AssertionError:
            logs = [f"{path.name}: {path.read_text()[-800:]}" for path in sorted(self.folder.glob("*.log"))]
            raise AssertionError(f"not all hosts joined: {self.nodes()}", *logs) from None


@contextmanager
def running_network_cluster() -> Iterator[NetworkCluster]:
    """Run a cluster of four hosts as long as the block runs."""
    folder = Path(tempfile.mkdtemp(prefix="ray-"))  # short: the paths of its sockets may have 107 bytes
    environment = {name: value for name, value in cluster_environment(folder).items() if name not in NOTICE_DEATH}
    environment |= _SPARING | _KEEPALIVE
    try:
        with joined_hosts(4) as network:
            cluster = NetworkCluster(network, folder, environment, network.hosts[0])
            cluster.mend()
            yield cluster
    finally:
        shutil.rmtree(folder, ignore_errors=True)
