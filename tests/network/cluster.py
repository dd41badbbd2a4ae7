"""A Ray cluster whose nodes are hosts of a network: the first is the head, on which drivers run, too."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.cluster import ROOT, cluster_environment
from tests.jobs.runs import wait_until
from tests.network.hosts import Host, Network, joined_hosts

_PORT = 6379
_OBJECT_STORE_BYTES = 80_000_000
_LIST = "import ray, json; ray.init('auto'); print(json.dumps([n['NodeManagerAddress'] for n in ray.nodes() if n['Alive']]))"


@dataclass
class NetworkCluster:
    """A running cluster."""

    network: Network
    folder: Path
    environment: dict[str, str]  # of the cluster's processes; drivers and commands take the same
    raylets: dict[str, subprocess.Popen[Any]] = field(default_factory=dict)  # by host

    @property
    def head(self) -> Host:
        """The host of the GCS and of drivers."""
        return self.network.hosts[0]

    @property
    def workers(self) -> list[Host]:
        """The hosts where the work is done."""
        return self.network.hosts[1:]

    @property
    def address(self) -> str:
        """The address of the GCS, for ray.init."""
        return f"{self.head.address}:{_PORT}"

    def driver_command(self, words: list[str]) -> list[str]:
        """Return the command that runs these words where drivers run."""
        return self.head.command(*words)

    def start(self, host: Host, num_cpus: int = 2) -> None:
        """Start a node on a host. The head has no CPUs, so that work is done on the others."""
        words = ["start", "--block", f"--node-ip-address={host.address}", f"--object-store-memory={_OBJECT_STORE_BYTES}"]
        if host is self.head:
            words += ["--head", f"--port={_PORT}", "--num-cpus=0", "--include-dashboard=false"]
            words += [f"--temp-dir={self.folder / 'ray'}"]
        else:
            words += [f"--address={self.address}", f"--num-cpus={num_cpus}"]
        ray = str(Path(sys.executable).parent / "ray")
        with open(self.folder / f"{host.name}.log", "a") as log:
            self.raylets[host.name] = subprocess.Popen(
                host.command(ray, *words), stdout=log, stderr=log, cwd=ROOT, env=self.environment
            )

    def alive(self) -> set[str]:
        """Return the addresses of the nodes that the GCS counts as alive."""
        found = subprocess.run(
            self.head.command(sys.executable, "-c", _LIST),
            capture_output=True,
            text=True,
            cwd=ROOT,
            env=self.environment | {"RAY_ADDRESS": self.address},
        )
        return set(json.loads(found.stdout.splitlines()[-1])) if not found.returncode else set()


@contextmanager
def running_network_cluster(folder: Path, count: int = 3) -> Iterator[NetworkCluster]:
    """Run a cluster over `count` hosts as long as the block runs; `folder` has a short name (Ray's sockets)."""
    with joined_hosts(count) as network:
        cluster = NetworkCluster(network, folder, cluster_environment(folder))
        try:
            for host in network.hosts:
                cluster.start(host)
                wait_until(lambda host=host: host.address in cluster.alive(), 120.0, 0.5)
            yield cluster
        finally:
            for raylet in reversed(cluster.raylets.values()):
                raylet.terminate()
            for raylet in cluster.raylets.values():
                try:
                    raylet.wait(30)
                except subprocess.TimeoutExpired:
                    raylet.kill()
