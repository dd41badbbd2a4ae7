"""A target in stages whose forwards are recorded writes the same tokens, and says where they are not recorded.

Each stage runs over a stand-in for a GPU in its process (`tests/decoding/stand_in_gpu.py`). The same in one process is
faster (`tests/decoding/network/test_stage_recordings.py`).
"""

import os
from typing import Any

import pytest

from actors.stages.actor import StageActor
from actors.stages.group import StageGroup
from actors.stages.target import ShardedModel
from decoding.engine.load import load_parts
from decoding.engine.options import EngineOptions
from tests.actors.sharded import SAMPLED, make_engine, make_sequences, sharded, texts
from tests.decoding.stand_in_gpu import StandInGpu, record_forwards

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_address")]


class RecordedStage(StageActor):
    """A stage over the stand-in."""

    refuses = False

    def load(self) -> Any:
        if self._loaded is None:
            os.environ["DRAY_KERNELS"] = "off"
            patch = pytest.MonkeyPatch()
            self._gpu = StandInGpu().install(patch)
            self._gpu.refuses = self.refuses
            record_forwards(patch)
            self._gpu.__enter__()
        return super().load()

    def num_replays(self) -> int:
        return self._gpu.num_replays


class RefusingStage(RecordedStage):
    refuses = True


class RecordedGroup(StageGroup):
    actor_class = RecordedStage


class RefusingGroup(StageGroup):
    actor_class = RefusingStage


def refusal(model: ShardedModel, path: str) -> str:
    """Why an engine over this target is refused that must run fused and recorded; nothing if it is not."""
    try:
        load_parts(path, None, EngineOptions(fused="required", max_model_len=60), "cpu", "float32", None, model)
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.slow
def test_recorded_stages_write_what_the_same_target_writes_in_one_process(pair):
    expected = texts(make_engine(pair, None), make_sequences(SAMPLED))
    with sharded(pair[0], 2, RecordedGroup) as model:
        assert model.facts()["graphs"]
        assert not model.fallback
        assert not refusal(model, pair[0])
        before = model.pipeline.group.ask_all("num_replays")
        assert min(before) >= 2, "the probe measures a replay of both forms"
        assert texts(make_engine(pair, model), make_sequences(SAMPLED)) == expected
        after = model.pipeline.group.ask_all("num_replays")
    assert all(one > other + 20 for one, other in zip(after, before, strict=True))


def test_stages_that_cannot_be_recorded_say_so_and_are_refused_where_that_is_required(pair):
    with sharded(pair[0], 1, RefusingGroup) as model:
        assert "forwards cannot be recorded here" in model.fallback
        assert not model.facts()["graphs"]
        assert "engine.fused is 'required'" in refusal(model, pair[0])
