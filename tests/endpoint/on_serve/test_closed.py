"""What others on the machine or its network find open of a command that serves, and what its processes show."""

import subprocess
from pathlib import Path

import psutil
import pytest

from tests.endpoint.on_serve.test_command import serving
from tests.endpoint.web import ask

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]
KEY = "sk-of-this-test-alone"
LOOPBACK = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


def processes_of(command: subprocess.Popen[str]) -> list[psutil.Process]:
    """Return the command and all processes that it or its Ray has started."""
    process = psutil.Process(command.pid)
    return [process, *process.children(recursive=True)]


def test_a_served_application_listens_on_loopback_alone_and_shows_its_key_nowhere(text_pair, tmp_path):
    batches = f"--serve.batches_path={tmp_path}"
    with serving(text_pair, batches, keys=KEY) as (command, url):
        port = int(url.rpartition(":")[2])
        assert ask(port, "/metrics").status == 401
        assert ask(port, "/v1/models", headers={"authorization": f"Bearer {KEY}"}).status == 200
        processes = processes_of(command)
        names = {
            name
            for process in processes
            for name in ("Ingress", "Replica", "Batches", "Proxy", "raylet", "gcs")
            if name in process.name() + " ".join(process.cmdline())
        }
        assert names == {"Ingress", "Replica", "Batches", "Proxy", "raylet", "gcs"}, "these are all kinds of process"
        listening = {
            (process.name(), connection.laddr.ip)
            for process in processes
            for connection in process.net_connections("inet")
            if connection.status == psutil.CONN_LISTEN or not connection.raddr
        }
        assert len(listening) >= len(names)
        assert {(name, address) for name, address in listening if address not in LOOPBACK} == set()
        for process in processes:
            for file in ("environ", "cmdline"):
                assert KEY.encode() not in Path(f"/proc/{process.pid}/{file}").read_bytes(), (file, process.name())
