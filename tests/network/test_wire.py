"""What the wire does to lines and connections: without it the tests of faults would prove nothing."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.jobs.runs import wait_until
from tests.network.hosts import Network, joined_hosts, why_not
from tests.network.wire import DEVICE

pytestmark = pytest.mark.network
PORT = 7
ECHO = f"""
import socket
while True:
    with socket.create_server(("", {PORT}), reuse_port=True) as server, server.accept()[0] as connection:
        while received := connection.recv(1 << 16):
            connection.sendall(received)
"""


@pytest.fixture
def network() -> Iterator[Network]:
    """A host, and on it a server that sends back what it gets."""
    if (why := why_not()) is not None:
        pytest.skip(f"no network of our own: {why}")
    with joined_hosts(1) as network:
        (host,) = network.hosts
        subprocess.Popen(host.command("sh", "-c", f"while :; do {sys.executable} -c '{ECHO}'; done"), stderr=-3)
        wait_until(lambda: reaches(network))
        yield network


def reaches(network: Network) -> bool:
    """Tell whether a byte comes back within two seconds."""
    try:
        with socket.create_connection((network.hosts[0].address, PORT), 2) as connection:
            connection.sendall(b"?")
            return connection.recv(1) == b"?"
    except OSError:
        return False


def test_a_line_that_is_cut_and_a_card_without_carrier_reach_nothing_until_they_are_mended(network):
    (host,) = network.hosts
    network.shape(host, is_cut=True)
    assert not reaches(network)
    network.mend(host)
    wait_until(lambda: reaches(network))
    for state in (["carrier", "off"], ["down"]):
        host.do("ip", "link", "set", DEVICE, *state)
        assert not reaches(network)
        network.mend(host)
        wait_until(lambda: reaches(network))


@pytest.mark.parametrize(
    ("line", "num_bytes", "seconds"), [({"delay_s": 0.05}, 1, 0.2), ({"bytes_per_s": 250_000}, 100_000, 0.4)]
)
def test_a_line_takes_its_delay_and_its_rate_in_both_directions(line, num_bytes, seconds, network):
    network.shape(network.hosts[0], **line)
    began = time.monotonic()
    with socket.create_connection((network.hosts[0].address, PORT), 60) as connection:
        connection.sendall(bytes(num_bytes))
        received = 0
        while received < num_bytes:
            received += len(connection.recv(1 << 16))
    assert time.monotonic() - began >= seconds


def test_connections_that_are_ended_fail_at_both_ends(network):
    (host,) = network.hosts
    with socket.create_connection((host.address, PORT), 20) as connection:
        connection.sendall(b"?")
        assert connection.recv(1) == b"?"
        host.do("ss", "--kill", "--no-header", "dst", network.own_address)
        with pytest.raises(ConnectionError):
            connection.recv(1)
