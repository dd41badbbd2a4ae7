"""A training that goes on from a checkpoint does the same steps, bit for bit, as one that was never interrupted."""

from pathlib import Path

import pytest
import torch

from tests.training.pair import DRAFT, TARGET
from training.learners.draft_learner import DraftLearner
from training.learners.head_learner import HeadLearner
from training.learners.packing import Document, Learner, Place, RowStream
from training.learners.teacher import Teacher
from training.trainer.checkpoint import TrainingState, restore_weights, write_weights
from training.trainer.optimizer import Optimizer, add_gradients

NUM_STEPS = 6


@pytest.fixture(scope="module")
def teacher() -> Teacher:
    return Teacher.load(TARGET, "cpu", "auto")


def _steps(learner: Learner, optimizer: Optimizer, stream: RowStream, steps: range) -> None:
    for step in steps:
        progress = (step + 0.5) / NUM_STEPS
        add_gradients(learner, stream.take(2), 50, progress, torch.device("cpu"))
        optimizer.step(progress)


@pytest.mark.parametrize("what", ["draft", "eagle3"])
def test_a_restored_training_is_the_one_that_was_interrupted(
    what: str, teacher: Teacher, documents: list[Document], tmp_path: Path
) -> None:
    def begin(place: Place) -> tuple[Learner, Optimizer, RowStream]:
        learner: Learner = (
            DraftLearner.load(DRAFT, teacher, "cpu") if what == "draft" else HeadLearner.new(teacher, range(300), 2)
        )
        optimizer = Optimizer(learner.network, learning_rate=1e-3, warmup=0.1, clip=1.0)
        return learner, optimizer, RowStream(lambda: documents, 128, learner.max_len, 0, place)

    whole = begin(Place())
    _steps(*whole, range(NUM_STEPS))
    learner, optimizer, stream = begin(Place())
    _steps(learner, optimizer, stream, range(3))
    write_weights(tmp_path, learner, optimizer)
    TrainingState(step=3, place=stream.place, curve=[{"step": 1, "loss": 0.5}]).write(tmp_path)

    state = TrainingState.read(tmp_path)
    assert state == TrainingState(step=3, place=stream.place, curve=[{"step": 1, "loss": 0.5}])
    learner, optimizer, stream = begin(state.place)
    restore_weights(tmp_path, learner, optimizer)
    _steps(learner, optimizer, stream, range(state.step, NUM_STEPS))
    for name, weight in whole[0].network.named_parameters():
        assert torch.equal(weight, learner.network.get_parameter(name)), name
