"""One pair from the factory, small enough for a test, and a report made by hand."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.decoder.counts.memory import Memory
from benchmarks.decoder.results import Report, Result
from benchmarks.pair_factory import Shape, make_pair

SHAPE = Shape(hidden=64, layers=4, heads=4, kv_heads=2, feed_forward=96, vocab=1024, draft_layers=1)
os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """target/ and draft/ in a folder, float32."""
    folder = tmp_path_factory.mktemp("pair")
    make_pair(folder, SHAPE, 0.8, torch.float32)
    return folder


def made_up(name: str = "adaptive", batch: int = 4, **changes: object) -> Result:
    """A result whose figures are easy to work out: 120 tokens, 2 repeats."""
    result = Result(
        name=name,
        batch=batch,
        num_rows=6,
        num_output_tokens=120,
        seconds=(4.0, 5.0),
        num_rounds=40,
        num_draft_tokens=100,
        num_accepted_tokens=80,
        drafted_per_position=(40, 30, 30),
        tried_per_position=(40, 25, 20),
        accepted_per_position=(30, 25, 25),
        raw_prefill=(0.5, 0.5),
        raw_target=(2.0, 3.0),
        raw_draft=(0.5, 0.5),
        num_target_forwards=10,
    )
    return replace(result, **changes)


def made_up_report(*results: Result, **options: object) -> Report:
    """A report around these results."""
    return Report(
        command="python -m benchmarks.decoder",
        date="2026-01-01 00:00 UTC",
        machine={"processor": "abacus", "threads": 2},
        versions={"torch": "1"},
        pair={"folder": "pair", "target_bytes": 400, "draft_bytes": 40},
        options={"corpus": "random", "samples": 1, "dtype": "float32", "new_tokens": 20, "temperature": 0, "repeats": 2}
        | {"top_p": 1.0, "top_k": 0, "min_p": 0.0}
        | options,
        copy_bandwidth=1000.0,
        read_bandwidth=700.0,
        target_bytes=300,
        prompt_tokens={"shortest": 3, "mean": 6.4, "longest": 9},
        results=results,
    )


MEMORY = Memory(peak=230, peak_with_loading=300, weights=150, kv_slots=50)
