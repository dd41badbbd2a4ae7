"""A peer's process: asked in JSON lines, missing where it is not installed, and no reason for the run to fail."""

import sys
from contextlib import closing

import pytest

from benchmarks.decoder.configurations import select
from benchmarks.decoder.corpus import make_corpus
from benchmarks.decoder.options import BenchOptions
from benchmarks.decoder.peers import PeerError, PeerRunner, Peers

WORKER = """#!{python}
import json, sys
task = json.loads(sys.stdin.readline())
print(json.dumps({{"versions": {{"made-up": "1"}}}}), flush=True)
for line in sys.stdin:
    question = json.loads(line)
    if question["batch"] == 13:
        sys.exit("unlucky")
    rows = [[7] * question["new_tokens"] for _ in question["prompts"]]
    print(json.dumps({{"seconds": 0.5, "token_ids": rows}}), flush=True)
"""


@pytest.fixture
def peers(pair, tmp_path):
    """Peers whose openvino is a script that repeats itself, in place of the environment's Python."""
    python = tmp_path / ".venv-openvino" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(WORKER.format(python=sys.executable))
    python.chmod(0o755)
    options = BenchOptions(pair=pair, peers=tmp_path, cache=tmp_path / "cache", new_tokens=4, prompt_lengths=(2, 5))
    with closing(Peers(options, pair, threads=1)) as found:
        yield found


def runner(peers: Peers, batch: int) -> PeerRunner:
    (configuration,) = select(["openvino"])
    return PeerRunner(configuration, batch, make_corpus(peers.options, peers.pair), 3, peers)


def test_a_peer_without_an_environment_cannot_be_measured(peers):
    (vllm,) = select(["vllm"])
    with pytest.raises(PeerError, match="not installed"):
        peers.worker(vllm, 64)


def test_one_worker_serves_every_batch(peers):
    result, outputs = runner(peers, 4).warm_up()
    assert result.num_output_tokens == 12
    assert outputs == [[7] * 4] * 3
    assert runner(peers, 8).repeat().seconds == 0.5
    assert peers.versions == {"made-up": "1"}


def test_a_worker_that_dies_says_so_and_where_to_look(peers):
    with pytest.raises(PeerError, match=r"its process ended \(1\), see .*openvino.log\nunlucky"):
        runner(peers, 13).warm_up()
