"""Tools that chain columns, as they are, write a corpus of two steps through the endpoint (`make test-clients`).

Each has an environment of its own. With a seed in the requests a corpus is the same twice, and if the engine is killed
in the middle.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
import pytest
import requests

from tests.endpoint.on_serve.application import kill
from tests.endpoint.on_serve.command import ROOT, free_port, ready
from tests.endpoint.toy_app import KEY
from tests.jobs.runs import wait_until

PROGRAMS = ROOT / "tests/endpoint/clients"
TOOLS = ("data_designer", "distilabel", "curator")
NUM_ROWS = 50
Rows = list[dict[str, str]]
pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]


class Demo:
    """The endpoint that `make serve-demo` starts, at a free port and with a folder of its own."""

    def __init__(self, process: "subprocess.Popen[str]", url: str) -> None:
        self._process, self.url = process, url

    def num_answered(self) -> int:
        """Return how many requests were answered well."""
        lines = requests.get(f"{self.url}/metrics", timeout=60).text.splitlines()
        answered = (line for line in lines if line.startswith("dray_http_requests_total") and 'status="200"' in line)
        return sum(int(float(line.split()[-1])) for line in answered if "/v1/" in line)

    def replica(self) -> int:
        """Return the process that has the engine."""
        own = psutil.Process(self._process.pid).children(recursive=True)
        (found,) = [each.pid for each in own if each.cmdline()[:1] == ["ray::ServeReplica:dray:Replica"]]
        return found


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    port, batches = free_port(), tmp_path_factory.mktemp("batches")
    command = [sys.executable, "-m", "jobs.serve", "--config=examples/configs/serve.yaml"]
    with ready([*command, f"--serve.port={port}", f"--serve.batches_path={batches}"]) as process:
        yield Demo(process, f"http://127.0.0.1:{port}")


@pytest.fixture(scope="module")
def corpora(demo: Demo, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Rows]:
    """The corpus of each tool that is installed here."""
    installed = (tool for tool in TOOLS if python(tool).exists())
    return {tool: finished(started(tool, demo.url, tmp_path_factory.mktemp(tool))) for tool in installed}


@pytest.mark.parametrize("tool", TOOLS)
def test_a_corpus_of_two_steps_is_the_same_again_though_the_engine_is_killed_in_the_middle(
    demo, corpora, tmp_path, tool
):
    first = corpora[tool] if tool in corpora else pytest.skip("make test-clients makes the environment of the tool")
    assert len(first) == NUM_ROWS
    assert all(row["story"] and row["summary"] for row in first)
    assert len({row["story"] for row in first}) > 10, "one seed gives equal prompts equal texts, and few others"
    victim, num_answered = demo.replica(), demo.num_answered()
    again = started(tool, demo.url, tmp_path)
    wait_until(lambda: demo.num_answered() >= num_answered + NUM_ROWS // 2, 300)
    kill(victim)
    assert again.poll() is None, "killed too late"
    assert finished(again) == first
    assert demo.replica() != victim


def test_all_tools_get_the_same_texts(corpora):
    """Data Designer takes white space from both ends of a story, and where it does so the summary is of another one."""
    if len(corpora) < 2:
        pytest.skip("make test-clients makes the environments of the tools")
    stories = [[row["story"].strip() for row in rows] for rows in corpora.values()]
    assert all(each == stories[0] for each in stories)
    if {"distilabel", "curator"} <= corpora.keys():
        assert corpora["distilabel"] == corpora["curator"]


def python(tool: str) -> Path:
    """Return the interpreter of a tool's environment."""
    return ROOT / f".venv-{tool}/bin/python"


def started(tool: str, url: str, folder: Path) -> "subprocess.Popen[str]":
    """Return the program that writes a corpus by a tool. It cannot reach the hub, and reports to no one."""
    own = {"HOME": str(folder), "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hub"), "TELEMETRY_ENABLED": "false"}
    if tool == "curator":  # it counts tokens by a file of OpenAI's, which litellm brings along
        (found,) = python(tool).parents[1].glob("lib/*/site-packages/litellm/*/tokenizers")
        own["TIKTOKEN_CACHE_DIR"] = str(found)
    command = [str(python(tool)), str(PROGRAMS / f"chain_{tool}.py"), url, KEY, "dray/tiny-pair", str(folder)]
    with (folder / "said.txt").open("w") as said:
        return subprocess.Popen(
            command, cwd=folder, env=os.environ | own, stdout=subprocess.PIPE, stderr=said, text=True
        )


def finished(program: "subprocess.Popen[str]") -> Rows:
    """Return the rows that a program found, in the order of their topics."""
    said, _ = program.communicate(timeout=600)
    assert isinstance(program.args, list)
    assert program.returncode == 0, said[-1000:] + Path(program.args[-1], "said.txt").read_text()[-3000:]
    (line,) = [line for line in said.splitlines() if line.startswith("found ")]
    rows: Rows = json.loads(line.removeprefix("found "))["rows"]
    return sorted(rows, key=lambda row: row["topic"])
