"""A target whose layers several processes share writes the same tokens, alone and in stages, whichever of them dies."""

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from actors.placement import StageSettings
from actors.stages.actor import StageActor
from actors.stages.group import StageGroup
from actors.stages.target import ShardedModel
from decoding.network.language_model import LanguageModel
from decoding.network.stage import Stage
from decoding.network.target import SlotsLostError
from decoding.sampling.logprobs import Stretch
from tests.actors.sharded import PARAMS, PROMPTS, SAMPLED, Pair, kill, make_engine, make_sequences, sharded, texts
from tests.decoding.tapped import Kept

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_address")]


class FailingStage(StageActor):
    """A stage whose second rank, or both, fails once before it computes anything: for lack of memory, or otherwise."""

    will_fail: BaseException | None = None

    def fail_once(self, error: BaseException, both: bool = False) -> None:
        self.will_fail = error if both or self._rank == 1 else None

    def do(self, work: Any, fed: Any, finish: Any = None) -> Any:
        error, self.will_fail = self.will_fail, None
        if error is not None:
            with self._together():
                raise error
        return super().do(work, fed, finish)


class FailingGroup(StageGroup):
    actor_class = FailingStage


@pytest.fixture(scope="module")
def model(ray_address: str, pair: Pair) -> Iterator[ShardedModel]:
    """Two ranks."""
    with sharded(pair[0], 1, FailingGroup, tensor_parallel=2) as model:
        yield model


def test_the_text_is_the_one_of_the_same_target_in_one_process(pair, model):
    for params in (SAMPLED, replace(PARAMS, temperature=0.0, repetition_penalty=1.2, logprobs=1)):
        expected = texts(make_engine(pair, None), make_sequences(params))
        assert texts(make_engine(pair, model, num_lanes=1), make_sequences(params)) == expected


def test_features_are_those_of_the_same_target_in_one_process(pair, model):
    whole = LanguageModel.load(pair[0], "cpu", "float32")
    taps = [Kept((3, 0, 2)), Kept((3, 0, 2))]
    logits = []
    for target, kept in zip((model, whole), taps, strict=True):
        for tap in (None, kept.tap):
            target.hand_out(tap)
            target.allocate(2, 60)
            target.prefill([1, 0], PROMPTS[:2])
            logits.append(target.logprobs([Stretch.over(0, 0, [4, 7, 9], [7, 9, 1], 3)]))
        target.hand_out(None)
    assert logits[0] == logits[1]
    found, expected = (kept.at for kept in taps)
    assert found.keys() == expected.keys()
    for place, (token, features) in expected.items():
        assert found[place][0] == token
        torch.testing.assert_close(found[place][1], features, rtol=1e-5, atol=1e-5)


def test_each_rank_has_its_share_of_the_weights(pair, model):
    whole = LanguageModel.load(pair[0], "cpu", "float32").num_weight_bytes
    shares = [facts.num_weight_bytes for facts in model.pipeline.group.ask_all("facts")]
    assert all(share < 0.8 * whole for share in shares), (shares, whole)


@pytest.mark.slow  # a whole stage dies in every run of the tests
@pytest.mark.parametrize("fault", ["its second process dies", "its first process dies", "a process fails alone"])
def test_a_stage_that_loses_a_rank_is_replaced_and_writes_the_same(pair, model, fault):
    group = model.pipeline.group
    before = group.num_replaced

    def strike() -> None:
        if fault == "a process fails alone":
            group.ask_all("fail_once", OSError("the disk is gone"))
        else:
            kill(model, 0, rank=int(fault == "its second process dies"))

    expected = texts(make_engine(pair, None), make_sequences(SAMPLED, PROMPTS[:6]))
    assert texts(make_engine(pair, model, num_lanes=1), make_sequences(SAMPLED, PROMPTS[:6]), {6: strike}) == expected
    assert group.num_replaced - before == 1


@pytest.mark.slow
@pytest.mark.parametrize(("error", "both"), [(MemoryError("no room"), False), (KeyError("a bug"), True)])
def test_memory_that_runs_out_in_one_rank_and_an_error_of_the_step_itself_are_raised_and_the_stage_works_again(
    model, error, both
):
    def logits() -> torch.Tensor:
        model.allocate(2, 60)
        model.prefill([0], [[1, 2, 3]])
        return model.logits([0], [3], [[5]])

    expected = logits()
    model.pipeline.group.ask_all("fail_once", error, both)
    with pytest.raises(type(error), match=error.args[0]):
        model.logits([0], [3], [[5]])
    with pytest.raises(SlotsLostError):
        model.logits([0], [3], [[5]])
    assert (logits() - expected).abs().max() < 1e-4


def test_a_model_that_cannot_be_shared_is_refused(pair):
    with pytest.raises(ValueError, match=r"shared out over 3 processes .* num_attention_heads is 4"):
        Stage.load(pair[0], 0, 1, "cpu", "float32", num_ranks=3)
    for num_gpus in (0.5, 2.0):
        with pytest.raises(ValueError, match="takes one whole GPU"):
            StageSettings(tensor_parallel=2, num_gpus=num_gpus)


@pytest.mark.slow
@pytest.mark.parametrize("behind", ["another forward of that shape", "nothing", "nothing, and it has no forward"])
def test_work_that_one_rank_did_not_do_is_lost_however_soon_others_are_done(model, behind):
    """Without a guard, the others' sums would meet the next forward's, and the missing part would go unnoticed."""
    model.allocate(2, 60)
    model.prefill([0, 1], [PROMPTS[0], PROMPTS[2][:9]])
    expected = model.logits([1], [9], [[5]])
    assert model.cache is not None
    model.pipeline.group.ask_all("fail_once", OSError("not now"))
    if behind == "nothing, and it has no forward":
        model.cache.swap(0, 1, 9, 9)
    else:
        model.prefill([1], [PROMPTS[2][:9]])
        if behind == "another forward of that shape":
            model.prefill([0], [PROMPTS[0]])
    with pytest.raises(SlotsLostError):
        model.cache.is_finite(0, 9)
    model.allocate(2, 60)
    model.prefill([1], [PROMPTS[2][:9]])
    assert (model.logits([1], [9], [[5]]) - expected).abs().max() < 1e-4


@pytest.mark.slow
def test_ranks_in_stages_write_the_same_whichever_of_them_dies_or_hangs(pair, sampled):
    with sharded(pair[0], 2, tensor_parallel=2, timeout_s=10.0) as model:
        group = model.pipeline.group

        def freeze() -> None:
            os.kill(group.ask_all("pid")[3], signal.SIGSTOP)

        faults = {4: partial(kill, model, 0, rank=1), 8: partial(kill, model, 1), 12: freeze}
        assert texts(make_engine(pair, model), make_sequences(SAMPLED), faults) == sampled
        assert group.num_replaced == 3
