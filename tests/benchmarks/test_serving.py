"""`python -m benchmarks.serving` measures: a small run, whose figures mean nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.pair_factory import SHAPES
from benchmarks.serving.__main__ import _SIZES
from benchmarks.serving.measures import WAYS

ROOT = Path(__file__).parents[2]
SMALL = "--slots 2 --max-waiting 2 --rows 6 --new-tokens 150 --repeats 2 --few 2 --bursts 2"


def long(test: Any) -> Any:
    """Mark a test as one of those that take minutes."""
    for mark in (pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)):
        test = mark(test)
    return test


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    command = [sys.executable, "-m", "benchmarks.serving", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500, check=False)


@long
def test_every_measure_is_taken_and_the_texts_are_those_of_the_engine_alone(
    text_pair: tuple[str, str], tmp_path: Path
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in ("hello", "one two", "small text")))
    files = ["--pair", str(Path(text_pair[0]).parent), "--prompts-file", str(prompts), "--json", f"{tmp_path}/out.json"]
    ended = bench(*SMALL.split(), *files)
    assert ended.returncode == 0, ended.stderr[-3000:]
    found: dict[str, Any] = json.loads((tmp_path / "out.json").read_text())["results"]
    throughput, refusals = found["throughput"], found["refusals"]
    assert throughput["num_tokens"] == 6 * 150
    assert {way: len(times) for way, times in throughput["seconds"].items()} == dict.fromkeys(WAYS, 2)
    assert set(throughput["share_equal"].values()) == {1.0}
    assert found["latency"].keys() == {"1", "2"}
    assert 0 < refusals["num_refused"] < refusals["num_asked"] == 2 * 4 * (2 + 2)
    assert refusals["seconds"]["num"] == refusals["num_refused"]
    for heading in ("x offline", "to the first token, 2 at a time", "refusals, of 32 requests"):
        assert heading in ended.stdout
    for told in ("  repeat 2/2: streamed ", "  burst 2/2: "):
        assert told in ended.stderr


HELP = """
import sys
from benchmarks.serving.__main__ import main
try:
    main(["--help"])
except SystemExit as ended:
    assert ended.code == 0
print("loaded:", *sorted({"torch", "transformers", "ray"} & sys.modules.keys()))
"""


def test_its_help_loads_no_large_library_and_names_every_size() -> None:
    ended = subprocess.run([sys.executable, "-c", HELP], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "--bursts N" in ended.stdout
    assert ended.stdout.splitlines()[-1] == "loaded:"
    assert tuple(SHAPES) == _SIZES
