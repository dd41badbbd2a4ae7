"""Stages on the kernels of a GPU, in the interpreter: the numbers of the whole model, recorded, in few operations."""

import pytest
import torch

from decoding.network.language_model import LanguageModel
from decoding.network.stage import Stage
from tests.decoding.gpu.operations import Operations
from tests.decoding.network.test_stage import packed
from tests.decoding.stand_in_gpu import record_forwards
from tests.decoding.tiny import build, llama_config, random_prompts, save

PROMPTS = random_prompts((20, 1, 9), seed=1)
SLOTS, LENGTHS = [2, 0, 3], [3, 1, 2]
TOKENS_BT = torch.randint(48, (3, 3), generator=torch.Generator().manual_seed(2))
EVERY_BT = torch.arange(3).expand(3, -1)
MOST_OPERATIONS = 22  # of a replayed forward of a stage, most of them copies into what the recording reads
STARTS = [len(row) for row in PROMPTS]


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> str:
    return save(build(llama_config(num_hidden_layers=3), seed=1), tmp_path_factory.mktemp("target"))


def exact(model: LanguageModel | Stage) -> LanguageModel | Stage:
    model.exact = "on"
    model.speed_up()
    assert model.has_exact_products
    assert model.fused.is_on_gpu
    return model


def test_recorded_stages_compute_the_whole_model_bit_for_bit_in_few_operations_and_no_wait(path, monkeypatch, gpu):
    whole = exact(LanguageModel.load(path, "cpu", "bfloat16"))
    whole.allocate(4, 60)
    whole.prefill(SLOTS, PROMPTS)
    expected = whole.forward(STARTS, TOKENS_BT, EVERY_BT, slots=SLOTS, lengths=LENGTHS).clone()
    record_forwards(monkeypatch)
    stages = [exact(Stage.load(path, index, 2, "cpu", "bfloat16")) for index in range(2)]
    assert all(stage.is_recorded for stage in stages)
    for stage in stages:
        stage.allocate(4, 60)
    fed = torch.tensor([token for row in PROMPTS for token in row])
    for stage in stages:
        fed = stage.forward(fed, [0] * 3, STARTS, None, SLOTS)
    counted = []
    for _ in range(3):
        fed = packed(TOKENS_BT, LENGTHS)
        for stage in stages:
            with Operations() as operations:
                out = stage.forward(fed, STARTS, LENGTHS, EVERY_BT, SLOTS)
            counted.append(operations)
            fed = out.clone()
        for row, other, length in zip(fed, expected, LENGTHS, strict=True):
            assert torch.equal(row[:length], other[:length])
    assert gpu.num_captured == len(stages)
    for operations in counted[-len(stages) :]:  # replays, whose number of operations no layer adds to
        assert not any(name.startswith("triton") for name in operations.launches)
        assert operations.launches.total() - operations.launches["aten.detach_"] <= MOST_OPERATIONS
    assert not any(operations.waits for operations in counted), "the answer is waited for, and nothing before it"
