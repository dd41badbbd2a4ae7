"""Hosts of one machine that see each other over a wire alone: network namespaces with a card and an address each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.faults.cluster import ROOT
from tests.network.wire import DEVICE

_MTU = 9000  # large frames, since each costs the switch the same


@dataclass(frozen=True)
class Host:
    """A host; `name` is that of its namespace."""

    name: str
    address: str

    def command(self, *words: str) -> list[str]:
        """Return the command that runs these words on the host."""
        return ["ip", "netns", "exec", self.name, *words]

    def do(self, *words: str) -> str:
        """Run a command there to its end, and return what it writes. Raises CalledProcessError if it fails."""
        return subprocess.run(self.command(*words), check=True, capture_output=True, text=True).stdout


@dataclass
class Network:
    """The hosts, and what happens to their lines."""

    hosts: list[Host]
    _wire: Any = field(default=None)

    def shape(self, host: Host, *, delay_s: float = 0.0, bytes_per_s: float | None = None) -> None:
        """Delay and slow the line of a host, in each direction. Without arguments the line is as it was."""
        self._tell(host, delay_s=delay_s, bytes_per_s=bytes_per_s)

    def cut(self, host: Host) -> None:
        """Let the line lose every frame, as a broken cable behind a switch does: the host's card sees nothing."""
        self._tell(host, is_cut=True)

    def mend(self, host: Host) -> None:
        """End a cut."""
        self._tell(host, is_cut=False)

    def unplug(self, host: Host) -> None:
        """Take the carrier from a host's card; connections that are used meanwhile may end."""
        host.do("ip", "link", "set", DEVICE, "down")

    def plug(self, host: Host) -> None:
        """Give the carrier back."""
        host.do("ip", "link", "set", DEVICE, "up")

    def end_connections(self, host: Host) -> None:
        """End all TCP connections of a host, at both ends."""
        for one in self.hosts:
            peers = [host] if one is not host else [other for other in self.hosts if other is not host]
            for peer in peers:
                one.do("ss", "--kill", "--no-header", "dst", peer.address)

    def _tell(self, host: Host, **change: Any) -> None:
        self._wire.stdin.write(json.dumps({"host": host.name, **change}) + "\n")
        self._wire.stdin.flush()
        assert self._wire.stdout.readline() == "ok\n", "the wire has ended"


def why_not() -> str | None:
    """Return why this machine can have no such hosts, or None if it can."""
    if os.geteuid():
        return "network namespaces need root"
    if not os.path.exists("/dev/net/tun"):
        return "there is no /dev/net/tun"
    return None


@contextmanager
def joined_hosts(count: int) -> Iterator[Network]:
    """Make hosts and join them, as long as the block runs."""
    hosts = [Host(f"dray{os.getpid()}-{number}", f"10.77.0.{number + 1}") for number in range(count)]
    made: list[Host] = []
    wire = None
    try:
        for host in hosts:
            subprocess.run(["ip", "netns", "add", host.name], check=True)
            made.append(host)
        wire = subprocess.Popen(
            [sys.executable, "-m", "tests.network.wire", *(host.name for host in hosts)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert wire.stdout is not None
        assert wire.stdout.readline() == "ok\n", "the wire did not start"
        for host in hosts:
            for words in _settings(host):
                host.do("ip", *words)
        yield Network(hosts, wire)
    finally:
        if wire is not None:
            assert wire.stdin is not None
            wire.stdin.close()
            wire.wait(20)
        for host in made:
            subprocess.run(["ip", "netns", "delete", host.name], check=True)


def _settings(host: Host) -> Iterator[Sequence[str]]:
    yield ("link", "set", "lo", "up")
    yield ("link", "set", DEVICE, "mtu", str(_MTU), "up")
    yield ("address", "add", f"{host.address}/24", "dev", DEVICE)
