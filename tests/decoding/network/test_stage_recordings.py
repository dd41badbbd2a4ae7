"""Stages whose forwards are recorded compute, bit for bit, what they compute where nothing is recorded.

They run over a stand-in for a GPU (`tests/decoding/stand_in_gpu.py`).
"""

from collections.abc import Sequence as Seq

import pytest
import torch
from torch.utils._python_dispatch import _disable_current_modes

from decoding.fused.decoder import FusedDecoder
from decoding.network.stage import Stage
from tests.decoding.families import FUSED, NUM_LAYERS, saved
from tests.decoding.network.test_stage import load_chain, packed
from tests.decoding.stand_in_gpu import record_forwards
from tests.decoding.tiny import random_prompts

SLOTS = [2, 0, 3, 1]
PROMPTS = random_prompts((20, 1, 9, 4), seed=1)
LENGTHS = [3, 1, 3, 2]  # of rows; a recording has room for 10 tokens
NOTHING = [()] * 6
ALL = [tuple(range(NUM_LAYERS))] * 6


@pytest.fixture(autouse=True)
def _torch_operations(monkeypatch):
    """The stand-in sees no kernel of ours."""
    monkeypatch.setenv("DRAY_KERNELS", "off")


@pytest.fixture
def path(tmp_path):
    return saved("llama", tmp_path, FUSED)


def fast_chain(path: str) -> list[Stage]:
    stages = load_chain(path, 2)
    for stage in stages:
        stage.speed_up()
    return stages


def rounds_of(stages: list[Stage], session: int, read: Seq[Seq[int]] = NOTHING) -> list[torch.Tensor]:
    """The logits, and the streams that are read, of rounds of ragged rows in scattered slots behind a prompt."""
    found, generator = [], torch.Generator().manual_seed(session)
    for stage in stages:
        stage.allocate(4, 80, session=session)

    def through(fed: torch.Tensor, starts: list[int], lengths: list[int], num_wanted: int, ids: Seq[int]) -> None:
        wanted_BJ = torch.arange(num_wanted).expand(4, -1)
        for stage in stages:
            features = stage.reader(ids)
            fed = stage.forward(fed, starts, lengths, wanted_BJ, SLOTS, session, features)
            fed = fed.clone()  # it is sent to another process
            if features is not None:
                found.append(features.take())
        found.append(fed)

    starts = [len(row) for row in PROMPTS]
    through(torch.tensor([token for row in PROMPTS for token in row]), [0] * 4, starts, 0, ())
    for number, ids in enumerate(read):
        lengths = [LENGTHS[(number + row) % 4] for row in range(4)]
        tokens_BT = torch.randint(48, (4, 3), generator=generator)
        through(packed(tokens_BT, lengths), [start + number for start in starts], lengths, 3, ids)
    return found


def same(found: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("read", [NOTHING, ALL, NOTHING[:3] + ALL[:3] + NOTHING[:3]], ids=["none", "all", "both"])
def test_recorded_stages_compute_what_stages_do_that_are_not_in_every_session(read, path, monkeypatch, gpu):
    with _disable_current_modes():
        stages = fast_chain(path)
        expected = [rounds_of(stages, session, read) for session in (0, 1)]
        assert not any(stage.is_recorded for stage in stages)
    record_forwards(monkeypatch)
    stages = fast_chain(path)
    assert all(stage.is_recorded for stage in stages)
    found = [rounds_of(stages, session, read) for session in (0, 1)]
    assert same(found[0], expected[0])
    assert same(found[1], expected[1])
    assert gpu.num_replays > gpu.num_captured > 0
    captured = gpu.num_captured
    assert same(rounds_of(stages, 0, read), expected[0]), "over fresh slots"
    assert gpu.num_captured > captured


def test_lanes_that_take_turns_keep_their_recordings(path, monkeypatch, gpu):
    record_forwards(monkeypatch)
    stages = fast_chain(path)
    for session in (0, 1):
        for stage in stages:
            stage.allocate(4, 80, session=session)
    for start in range(8):
        for session in (0, 1):
            fed = torch.tensor([start, session])
            for stage in stages:
                fed = stage.forward(fed, [start, 0], [1, 1], torch.zeros(2, 1, dtype=torch.int64), session=session)
    assert gpu.num_captured == 2 * len(stages)


def test_a_stage_that_cannot_be_recorded_says_so(path, monkeypatch, gpu):
    record_forwards(monkeypatch)
    gpu.refuses = True
    stages, lines, forward = fast_chain(path), [], FusedDecoder.forward
    monkeypatch.setattr(
        FusedDecoder, "forward", lambda self, fed, *rest: lines.append(len(fed)) or forward(self, fed, *rest)
    )
    rounds_of(stages, 0)
    assert sum(LENGTHS) not in lines, "it keeps the padding of other ranks, which may record"
    assert all("cannot be recorded" in stage.fallback and not stage.is_recorded for stage in stages)
    stages[0].slow_down("it deviates")
    assert stages[0].fallback.endswith("it deviates")
