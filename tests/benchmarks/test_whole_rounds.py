"""Rounds that the host starts as a whole: which forwards they are, and what is recorded and replayed of them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.decoder.counts.whole_rounds import forwards_of
from benchmarks.roofline.model_size import Forward

pytest.importorskip("triton")
from decoding.engine.rounds.overlapped.inputs import RoundInputs, Start

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def found() -> dict:
    """What tests/benchmarks/overlapped.py says."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.benchmarks.overlapped"]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads(ended.stdout)


@pytest.mark.slow
def test_rounds_that_overlap_are_counted_though_the_host_starts_no_forward(found):
    assert found["kind"] == "RoundsAhead"
    counts = found["counts"][0]
    assert 4 / 3 <= counts["target"] <= 4 + 1  # 4 tokens a row in drafts of 2, and a round that is thrown away
    assert counts["target"] <= counts["draft"] <= 2 * counts["target"]
    assert counts["prefill"] == 2  # of each model
    rounds = [forward for forward in found["forwards"] if forward[0] != "prefill"]
    assert rounds[:3] == [  # prompts of 3 and 2 tokens: tokens, logits, keys, pairs
        ["target", 6, 6, 5 + 4, (3 + 4 + 5) + (2 + 3 + 4)],
        ["draft", 4, 2, 3 + 2, (2 + 3) + (1 + 2)],
        ["draft", 2, 2, 4 + 3, 4 + 3],
    ]


@pytest.mark.slow
def test_an_engine_that_keeps_its_recordings_begins_anew(found):
    assert found["keeps_recordings"]
    assert found["texts"][0] == found["texts"][1]
    assert found["counts"][0] == found["counts"][1]  # prompts are read again, also those whose slots still hold them


@pytest.mark.slow
def test_a_round_that_overlaps_is_two_replays_and_one_wait(found):
    assert (found["launches"]["replays"], found["launches"]["host_syncs"]) == (2, 1)
    assert found["launches"]["launches"] < 20


def test_the_target_reads_the_newest_token_and_the_draft_and_the_draft_one_token_a_step_after_the_first():
    inputs = RoundInputs((2, 0, 1), (True, False, True), {0: Start(10, 7, 8), 2: Start(5, 3, 4)})
    scored, steps = forwards_of(inputs)
    assert scored == Forward(3 + 2, 3 + 2, 12 + 6, (10 + 11 + 12) + (5 + 6))
    assert steps == [Forward(4, 2, 10 + 5, (9 + 10) + (4 + 5)), Forward(2, 2, 11 + 6, 11 + 6)]
    assert forwards_of(RoundInputs((0,), (True,), {0: Start(10, 7, 8)})) == (Forward(1, 1, 10, 10), [])
