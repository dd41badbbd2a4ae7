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


def test_a_line_delays_and_one_that_is_cut_or_a_card_that_is_down_reaches_nothing_until_it_is_mended(network):
    (host,) = network.hosts
    network.shape(host, delay_s=0.05)
    began = time.monotonic()
    assert reaches(network)
    assert time.monotonic() - began >= 0.2, "two round trips were quicker than the line"
    network.mend(host)
    for card in (["carrier", "off"], ["down"], ["up"]):
        host.do("ip", "link", "set", DEVICE, *card)
        network.shape(host, is_cut=card == ["up"])
        assert not reaches(network)
        network.mend(host)
        wait_until(lambda: reaches(network))


def test_connections_that_are_ended_fail_at_both_ends(network):
    (host,) = network.hosts
    with socket.create_connection((host.address, PORT), 20) as connection:
        connection.sendall(b"?")
        assert connection.recv(1) == b"?"
        host.do("ss", "--kill", "--no-header", "dst", network.own_address)
        with pytest.raises(ConnectionError):
            connection.recv(1)
