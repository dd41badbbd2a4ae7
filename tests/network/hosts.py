"""Hosts of one machine that see each other over a wire alone: network namespaces with a card and an address each."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from tests.faults.cluster import ROOT
from tests.jobs.runs import wait_until
from tests.network.wire import DEVICE

_MTU = 9000  # large frames, since each costs the switch the same


@dataclass(frozen=True)
class Host:
    """A host; `name` is that of its network namespace. It has mounts of its own; all other files are shared."""

    name: str
    address: str
    keeper: int  # a process that does nothing, whose namespaces are the host's

    def command(self, *words: str) -> list[str]:
        """Return the command that runs these words on the host. Its process is that of the words."""
        return ["nsenter", f"--target={self.keeper}", "--net", "--mount", "env", f"--chdir={ROOT}", *words]

    def do(self, *words: str) -> str:
        """Run a command there to its end, and return what it writes. Raises CalledProcessError if it fails."""
        return subprocess.run(self.command(*words), check=True, capture_output=True, text=True).stdout

    def processes(self, title: str = "") -> set[int]:
        """Return the processes of the host whose command line begins with `title`, without its keeper."""
        found = subprocess.run(["ip", "netns", "pids", self.name], check=True, capture_output=True, text=True)
        return {pid for pid in map(int, found.stdout.split()) if pid != self.keeper and _has_title(pid, title)}

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all processes of the host; SIGKILL until none is left."""
        while found := self.processes():
            for process in found:
                with suppress(ProcessLookupError):
                    os.kill(process, number)
            if number != signal.SIGKILL:
                return


@dataclass
class Network:
    """The hosts, and what happens to their lines. This process has a line, too, which nothing happens to."""

    hosts: list[Host]
    own_address: str
    _wire: Any = field(default=None)

    def shape(self, host: Host, **line: Any) -> None:
        """Change the line of a host: fields of `wire.Line`."""
        self._wire.stdin.write(json.dumps({"host": host.name, **line}) + "\n")
        self._wire.stdin.flush()
        assert self._wire.stdout.readline() == "ok\n", "the wire has ended"

    def mend(self, host: Host) -> None:
        """Make the line and the card of a host as they were."""
        self.shape(host, delay_s=0.0, bytes_per_s=None, is_cut=False, loss=0.0)
        host.do("ip", "link", "set", DEVICE, "carrier", "on")
        host.do("ip", "link", "set", DEVICE, "up")

    def cut(self, host: Host, seconds: float) -> None:
        """Let the line of a host lose all frames for a while; neither end is told."""
        self.shape(host, is_cut=True)
        time.sleep(seconds)
        self.mend(host)

    def end_connections(self, host: Host, *which: str) -> None:
        """End the TCP connections of a host, at both ends: all of them, or those that a filter of `ss` names."""
        for one in self.hosts:
            for peer in [host] if one is not host else [other for other in self.hosts if other is not host]:
                one.do("ss", "--kill", "--no-header", "dst", peer.address, *which)


def _has_title(process: int, title: str) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{process}/cmdline").read_bytes().startswith(title.encode())
    return False


def why_not() -> str | None:
    """Return why this machine can have no such hosts, or None if it can."""
    if os.geteuid():
        return "network namespaces need root"
    if missing := [command for command in ("ip", "ss", "nsenter") if shutil.which(command) is None]:
        return f"there is no {missing[0]} (Debian's packages iproute2 and util-linux)"
    if not os.path.exists("/dev/net/tun"):
        return "there is no /dev/net/tun"
    return None


_NUMBERS = count()  # of the networks of this process, which may be there at once


@contextmanager
def joined_hosts(num_hosts: int) -> Iterator[Network]:
    """Make hosts and join them, as long as the block runs. At its end all processes in them are killed."""
    number = next(_NUMBERS)
    own, network = f"dray{os.getpid()}x{number}", f"10.{77 + number}.{os.getpid() % 256}"
    hosts: list[Host] = []
    keepers: list[subprocess.Popen[bytes]] = []
    wire = None
    try:
        for number in range(1, num_hosts + 1):
            name = f"{own}-{number}"
            subprocess.run(["ip", "netns", "add", name], check=True)
            keepers.append(subprocess.Popen(["ip", "netns", "exec", name, "sleep", "infinity"]))
            hosts.append(Host(name, f"{network}.{number}", keepers[-1].pid))
            wait_until(lambda keeper=keepers[-1]: Path(f"/proc/{keeper.pid}/comm").read_text() == "sleep\n", 20.0)
        words = [sys.executable, "-m", "tests.network.wire", own, *(host.name for host in hosts)]
        wire = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert wire.stdout is not None
        assert wire.stdout.readline() == "ok\n", "the wire did not start"
        _set_up([], own, f"{network}.254")
        for host in hosts:
            host.do("ip", "link", "set", "lo", "up")
            _set_up(host.command(), DEVICE, host.address)
        yield Network(hosts, f"{network}.254", wire)
    finally:
        for host in hosts:
            host.signal(signal.SIGKILL)
        if wire is not None:
            assert wire.stdin is not None
            wire.stdin.close()
            wire.wait(20)
        for host, keeper in zip(hosts, keepers, strict=False):
            keeper.kill()
            keeper.wait(20)
            subprocess.run(["ip", "netns", "delete", host.name], check=True)


def _set_up(where: list[str], device: str, address: str) -> None:
    subprocess.run([*where, "ip", "link", "set", device, "mtu", str(_MTU), "up"], check=True)
    subprocess.run([*where, "ip", "address", "add", f"{address}/24", "dev", device], check=True)
