"""`python -m tests.network.wire OWN HOST...`: a switch in user space between hosts in network namespaces.

Not every kernel can delay frames (netem), so the frames pass through this process. Each host has a network card whose
other end is here (a TAP device); a card named OWN stays in the namespace that the command is given in. Commands come
as lines of JSON on standard input, `{"host": ..., "delay_s": ...}` with the fields of a Line that change, and each is
answered by a line. The process ends with its standard input.
"""

import fcntl
import heapq
import json
import os
import random
import select
import struct
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from math import inf

DEVICE = "wire0"
_TUNSETIFF, _IFF_TAP, _IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
_MAX_FRAME = 1 << 16
_MAX_QUEUED_S = 2.0  # a slow line drops what would wait for longer, as a router with a full queue does
_BROADCAST = b"\xff" * 6


@dataclass
class Line:
    """The line between a host and the switch."""

    device: int
    delay_s: float = 0.0  # of each frame, in each direction
    bytes_per_s: float = inf  # in each direction
    is_cut: bool = False  # frames are lost, and neither end is told
    loss: float = 0.0  # the share of frames that are lost
    free_at: dict[str, float] = field(default_factory=lambda: {"up": 0.0, "down": 0.0})

    def arrival(self, direction: str, at: float, num_bytes: int) -> float | None:
        """Return when a frame that enters the line at this time has left it; None if the line loses it."""
        begins = max(at, self.free_at[direction])
        if self.is_cut or begins - at > _MAX_QUEUED_S or random.random() < self.loss:
            return None
        self.free_at[direction] = begins + num_bytes / self.bytes_per_s
        return self.free_at[direction] + self.delay_s


class Switch:
    """The lines of all hosts, and the frames that are under way."""

    def __init__(self, own: str, hosts: list[str]) -> None:
        """Make a card for this namespace and one for each host, which is moved into the host's namespace."""
        self.lines = {own: Line(_make_card(own))}
        for host in hosts:
            self.lines[host] = Line(_make_card(name := f"{host[-8:]}-tap"))
            assert not os.system(f"ip link set {name} netns {host} name {DEVICE}"), "the card could not be moved"
        self._line_of: dict[bytes, Line] = {}  # by the address of a card
        self._under_way: list[tuple[float, int, int, bytes]] = []  # when it arrives, its number, where, the frame
        self._number = count()

    def run(self) -> None:
        """Pass frames on until standard input ends."""
        by_device = {line.device: line for line in self.lines.values()}
        while True:
            wait_s = max(0.0, self._under_way[0][0] - time.monotonic()) if self._under_way else None
            ready, _, _ = select.select([0, *by_device], [], [], wait_s)
            for device in ready:
                if device:
                    self._enter(by_device[device], os.read(device, _MAX_FRAME))
                elif not (command := sys.stdin.readline()):
                    return
                else:
                    change = json.loads(command)
                    line = self.lines[change.pop("host")]
                    for name, value in change.items():
                        setattr(line, name, inf if value is None else value)
                    sys.stdout.write("ok\n")
                    sys.stdout.flush()
            while self._under_way and self._under_way[0][0] <= time.monotonic():
                _, _, device, frame = heapq.heappop(self._under_way)
                with suppress(OSError):  # the card is down
                    os.write(device, frame)

    def _enter(self, line: Line, frame: bytes) -> None:
        """Let a frame of a host into the wire."""
        to, sender, now = frame[:6], frame[6:12], time.monotonic()
        self._line_of[sender] = line
        at = line.arrival("up", now, len(frame))
        known = self._line_of.get(to)
        for other in [known] if known is not None and not to[0] & 1 else self.lines.values():
            arrival = None if at is None or other is line else other.arrival("down", at, len(frame))
            if arrival is not None:
                heapq.heappush(self._under_way, (arrival, next(self._number), other.device, frame))


def _make_card(name: str) -> int:
    """Return the open device of a new card."""
    device = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22s", name.encode(), _IFF_TAP | _IFF_NO_PI, b""))
    return device


if __name__ == "__main__":
    switch = Switch(sys.argv[1], sys.argv[2:])
    sys.stdout.write("ok\n")
    sys.stdout.flush()
    switch.run()
