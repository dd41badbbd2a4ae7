"""`python -m jobs.serve`, as a process of its own, over each placement."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from tests.endpoint.in_process import Running, settings_of
from tests.endpoint.on_serve.command import OWN_CLUSTER, ROOT, free_port, ready

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]
PLACEMENTS = {
    "colocated": [],
    "split": ["--placement=split", "--drafts.num_cpus=0.1", "--drafts.timeout_s=20"],
    "stages": ["--stages.count=2", "--stages.num_cpus=0.1", "--serve.hang_timeout_s=2000"],
}


def command(target: str | Path, *flags: str, variable: str | None = None) -> list[str]:
    """Return the command that serves a target, open to everyone without a variable with keys."""
    module = [sys.executable, "-m", "jobs.serve"]
    access = "--serve.open" if variable is None else f"--serve.key_variables={variable}"
    return [*module, f"--models.target={target}", "--models.device=cpu", access, *flags]


def run(target: str | Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Run the command, which fails because of a user's mistake."""
    ended = subprocess.run(
        command(target, *flags), cwd=ROOT, env=OWN_CLUSTER, capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 2, ended.stderr
    assert "Traceback" not in ended.stderr
    return ended


@contextmanager
def serving(pair: tuple[str, str], *flags: str, keys: str | None = None) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command once it is ready, and where it listens; open to everyone without keys."""
    variable = None if keys is None else "DRAY_TEST_KEYS"
    environment = OWN_CLUSTER | ({} if variable is None else {variable: str(keys)})
    port = free_port()
    flags += (f"--models.draft={pair[1]}", f"--serve.port={port}", "--engine.max_model_len=250")
    flags += ("--engine.draft_length=fixed", "--engine.num_speculative_tokens=3")
    with ready(command(pair[0], *flags, variable=variable), environment) as process:
        yield process, f"http://127.0.0.1:{port}"


def offline(pair: tuple[str, str], requests: list[dict[str, Any]]) -> list[str]:
    """Return the text that the target alone writes for each request."""
    return [text for (text,) in Running(0, settings_of(pair, max_model_len=250)).texts_of(requests)]


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_it_serves_the_targets_own_text_and_ends_after_the_requests_in_flight(text_pair, placement):
    with serving(text_pair, *PLACEMENTS[placement]) as (process, url):
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0)
        short: dict[str, Any] = {"prompt": "hello", "seed": 4, "max_tokens": 40}
        assert [client.completions.create(model="target", **short).choices[0].text] == offline(text_pair, [short])
        scored = client.completions.create(model="target", prompt="one two", max_tokens=0, echo=True, logprobs=1)
        assert scored.choices[0].logprobs is not None
        long: dict[str, Any] = {"prompt": "hello", "seed": 5, "max_tokens": 220}
        stream = client.completions.create(model="target", stream=True, extra_body={"ignore_eos": True}, **long)
        text = next(stream).choices[0].text
        process.send_signal(signal.SIGTERM)
        text += "".join(chunk.choices[0].text for chunk in stream)
        assert [text] == offline(text_pair, [{**long, "ignore_eos": True}])
        assert process.wait(120) == 0
        with pytest.raises(httpx2.ConnectError):
            httpx2.get(f"{url}/health")


ANOTHERS_SERVE = """
import sys, ray
from ray import serve
context = ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1])})
print("at", context.address_info["gcs_address"], flush=True)
sys.stdin.read()
print("serving" if serve.status().proxies else "shut down", flush=True)
"""


def test_another_programs_serve_without_the_gate_is_refused_and_left_alone(text_pair):
    another = subprocess.Popen(
        [sys.executable, "-c", ANOTHERS_SERVE, str(free_port())],
        env=OWN_CLUSTER,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert another.stdin is not None
    assert another.stdout is not None
    try:
        address = next(line.split()[1] for line in another.stdout if line.startswith("at "))
        ended = run(text_pair[0], f"--serve.ray_address={address}", f"--serve.port={free_port()}")
        assert "without this endpoint's gate" in ended.stderr
    finally:
        rest, _ = another.communicate(timeout=120)
    assert "serving" in rest
